"""What clients of ZooKeeper talk about: nodes, operations of a transaction, connect strings, error codes."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

U = TypeVar("U")


class Stat(msgspec.Struct, frozen=True, gc=False):
    """ZooKeeper's record of a node. zxids are transaction ids, times ms since the epoch."""

    czxid: int
    mzxid: int
    version: int
    cversion: int
    ephemeral_owner: int
    """Session id of the owner (signed, compare with `ZooKeeperSession.id`); 0: persistent."""
    num_children: int
    ctime: int
    mtime: int


class Node(msgspec.Struct, frozen=True, gc=False):
    """A node's content (b"" also for null) and its stat."""

    data: bytes
    stat: Stat


class AclEntry(NamedTuple):
    """What a user may do with a node: ZooKeeper's bits, as `world`, `anyone` may do all with 31."""

    permissions: int
    scheme: str
    user: str


class Create(msgspec.Struct, frozen=True):
    """Create a node; refused with NodeExistsError, or NoNodeError without a parent.

    `sequential`: the server adds a number. `acl`: empty for that of the session.
    """

    path: str
    data: bytes
    ephemeral: bool = False
    sequential: bool = False
    acl: tuple[AclEntry, ...] = ()


class SetData(msgspec.Struct, frozen=True):
    """Replace a node's content; refused with NoNodeError, or BadVersionError for another `version` (-1: any)."""

    path: str
    data: bytes
    version: int


class Delete(msgspec.Struct, frozen=True):
    """Remove a node without children; refused with NoNodeError, or BadVersionError for another `version` (-1: any)."""

    path: str
    version: int


class Check(msgspec.Struct, frozen=True):
    """Change nothing; refused with NoNodeError, or BadVersionError unless `version` is the node's."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check

# A request larger than `jute.maxbuffer` of the servers is not answered: they close the connection. That is 1,048,575
# bytes unless somebody has set less, which no client can find out. So what can be divided is, far below that.

REQUEST_BYTES: Final = 60_000
"""Of what can be divided: `jute.maxbuffer` may be 64 KB."""

_BESIDES: Final = 25
_BESIDES_OF_CREATE: Final = 46
_ACL_OF_SESSION: Final = 39
_BESIDES_OF_ENTRY: Final = 12


def size_of(operations: Iterable[Operation]) -> int:
    """About how many bytes they have in a request, without a chroot."""
    size = 0
    for each in operations:
        size += len(each.path.encode()) + (_BESIDES_OF_CREATE if isinstance(each, Create) else _BESIDES)
        if isinstance(each, Create | SetData):
            size += len(each.data)
        if isinstance(each, Create):
            acl = sum(len(entry.scheme.encode()) + len(entry.user.encode()) + _BESIDES_OF_ENTRY for entry in each.acl)
            size += acl or _ACL_OF_SESSION
    return size


def transactions(
    units: Iterable[tuple[U, Sequence[Operation]]], most: int, room: int = REQUEST_BYTES
) -> list[list[tuple[U, Sequence[Operation]]]]:
    """The units in their order, divided: `most` for each transaction, and as many bytes as there is room for.

    A unit's operations are not divided, also if they need more room.
    """
    divided: list[list[tuple[U, Sequence[Operation]]]] = []
    left = 0
    for unit in units:
        size = size_of(unit[1])
        if not divided or size > left or len(divided[-1]) >= most:
            divided.append([])
            left = room
        divided[-1].append(unit)
        left -= size
    return divided


# The form of Kafka's `zookeeper.connect`: hosts and an optional chroot.

DEFAULT_PORT = 2181

# Java checks UTF-16 units: characters beyond the BMP are refused with the surrogates.
_REFUSED_CHARACTERS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class ConnectString(msgspec.Struct, frozen=True):
    """The hosts of an ensemble, and the node used as `/` ("" without one)."""

    hosts: tuple[tuple[str, int], ...]
    chroot: str

    def __str__(self) -> str:
        return ",".join(host_port(host, port) for host, port in self.hosts) + self.chroot

    @classmethod
    def parse(cls, text: str) -> ConnectString:
        """Read `h1:2181,h2,[::1]:2182/chroot`; a missing port is 2181, a chroot of `/` is none.

        Raises ValueError, with the reason, on anything else.
        """
        servers, slash, rest = text.strip().partition("/")
        if not servers:
            raise ValueError(f"{text!r} names no host")
        chroot = slash + rest
        if chroot in ("", "/"):
            chroot = ""
        elif "," in chroot:
            raise ValueError(f"chroot {chroot!r} holds a comma: write the chroot once, behind the last host")
        elif fault := path_fault(chroot):
            raise ValueError(f"chroot {chroot!r} {fault}")
        return cls(tuple(_host(server.strip()) for server in servers.split(",")), chroot)

    def full(self, path: str) -> str:
        """The path with the chroot. Raises ValueError for an invalid path, which could leave the chroot."""
        if fault := path_fault(path):
            raise ValueError(fault)
        if path == "/":
            return self.chroot or "/"
        return self.chroot + path


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def path_fault(path: str) -> str:
    """Why ZooKeeper refuses this path (`org.apache.zookeeper.common.PathUtils`, 3.8), or ""."""
    if not path.startswith("/"):
        return "does not start with /"
    if path == "/":
        return ""
    if path.endswith("/"):
        return "ends with /"
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            return f"has {name!r} between its slashes"
    if wrong := _REFUSED_CHARACTERS.search(path):
        return f"holds the character {wrong[0]!r}"
    return ""


def _host(text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not [address]:port")
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise ValueError(f"{text!r}: write an IPv6 address in brackets")
    if not host or any(character.isspace() for character in host):
        raise ValueError(f"{text!r} names no host")
    if not colon:
        return host, DEFAULT_PORT
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r}: {port!r} is not a port")
    return host, int(port)


# Error codes and what each means for the client. Numbers and names are those of
# `org.apache.zookeeper.KeeperException.Code` (3.4 to 3.9).


class Handling(enum.Enum):
    """What the client does after a reply with a code."""

    ANSWER = "answer"
    """It is the result: the nodes are such that the request was not executed. The caller decides."""
    REPEAT = "repeat"
    """Not executed, and it would be a moment later: it is sent again."""
    WAIT = "wait"
    """Not executed until an operator changes something: it is sent again until then."""
    RECONNECT = "reconnect"
    """The outcome is unknown, or another server has to be asked: the connection is given up."""
    REFUSED = "refused"
    """The server does not let this client in."""
    END = "end"
    """It never will be executed: what asked for it fails."""


class ZooKeeperErrorCode(NamedTuple):
    name: str
    handling: Handling
    meaning: str


OK: Final = 0
RUNTIME_INCONSISTENCY: Final = -2
NO_NODE: Final = -101
NO_AUTH: Final = -102
BAD_VERSION: Final = -103
NODE_EXISTS: Final = -110
NOT_EMPTY: Final = -111
AUTH_FAILED: Final = -115
REQUIRES_SASL: Final = -124
QUOTA_EXCEEDED: Final = -125
THROTTLED: Final = -127

_ANSWER, _REPEAT, _WAIT, _RECONNECT, _REFUSED, _END = Handling

ERROR_CODES: Final[Mapping[int, ZooKeeperErrorCode]] = {
    OK: ZooKeeperErrorCode("OK", _ANSWER, "executed"),
    -1: ZooKeeperErrorCode("SYSTEMERROR", _END, "the server failed; its log says why"),
    RUNTIME_INCONSISTENCY: ZooKeeperErrorCode(
        "RUNTIMEINCONSISTENCY", _END, "another operation of the transaction was refused"
    ),
    -3: ZooKeeperErrorCode("DATAINCONSISTENCY", _END, "the server's data are inconsistent; its log says why"),
    -4: ZooKeeperErrorCode("CONNECTIONLOSS", _RECONNECT, "the server lost its connection"),
    -5: ZooKeeperErrorCode(
        "MARSHALLINGERROR", _END, "the server could not read or execute the request; its log says why"
    ),
    -6: ZooKeeperErrorCode("UNIMPLEMENTED", _END, "the server does not know this request: it is too old"),
    -7: ZooKeeperErrorCode("OPERATIONTIMEOUT", _RECONNECT, "the servers did not agree in time"),
    -8: ZooKeeperErrorCode("BADARGUMENTS", _END, "the server considers the request invalid"),
    -9: ZooKeeperErrorCode("INVALIDSTATE", _RECONNECT, "the session is not in a state to be served"),
    -12: ZooKeeperErrorCode("UNKNOWNSESSION", _RECONNECT, "the server does not know the session"),
    -13: ZooKeeperErrorCode("NEWCONFIGNOQUORUM", _END, "a new configuration of the ensemble has no quorum"),
    -14: ZooKeeperErrorCode("RECONFIGINPROGRESS", _END, "the ensemble is being reconfigured"),
    -100: ZooKeeperErrorCode("APIERROR", _END, "the server refuses the request"),
    NO_NODE: ZooKeeperErrorCode("NONODE", _ANSWER, "no such node"),
    NO_AUTH: ZooKeeperErrorCode("NOAUTH", _ANSWER, "the node's ACL is for another user"),
    BAD_VERSION: ZooKeeperErrorCode("BADVERSION", _ANSWER, "the node has another version"),
    -108: ZooKeeperErrorCode("NOCHILDRENFOREPHEMERALS", _END, "an ephemeral node has no children"),
    NODE_EXISTS: ZooKeeperErrorCode("NODEEXISTS", _ANSWER, "the node exists"),
    NOT_EMPTY: ZooKeeperErrorCode("NOTEMPTY", _ANSWER, "the node has children"),
    -112: ZooKeeperErrorCode("SESSIONEXPIRED", _RECONNECT, "the session has expired"),
    -113: ZooKeeperErrorCode("INVALIDCALLBACK", _END, "the callback is invalid"),
    -114: ZooKeeperErrorCode(
        "INVALIDACL", _END, "the ACL is invalid: [zookeeper] acl needs [zookeeper.sasl] or [zookeeper.digest]"
    ),
    AUTH_FAILED: ZooKeeperErrorCode(
        "AUTHFAILED", _REFUSED, "the server does not accept our authentication (AUTH_FAILED)"
    ),
    -118: ZooKeeperErrorCode("SESSIONMOVED", _RECONNECT, "the session is served by another server"),
    -119: ZooKeeperErrorCode("NOTREADONLY", _RECONNECT, "the server is cut off from the others, and read-only"),
    -120: ZooKeeperErrorCode(
        "EPHEMERALONLOCALSESSION",
        _END,
        "the server keeps sessions for itself (localSessionsEnabled): set localSessionsUpgradingEnabled=true there",
    ),
    -121: ZooKeeperErrorCode("NOWATCHER", _END, "there is no such watch"),
    -122: ZooKeeperErrorCode("REQUESTTIMEOUT", _RECONNECT, "the request was not answered in time"),
    -123: ZooKeeperErrorCode("RECONFIGDISABLED", _END, "the ensemble must not be reconfigured"),
    REQUIRES_SASL: ZooKeeperErrorCode(
        "SESSIONCLOSEDREQUIRESASLAUTH", _REFUSED, "the server requires SASL: [zookeeper.sasl]"
    ),
    QUOTA_EXCEEDED: ZooKeeperErrorCode(
        "QUOTAEXCEEDED", _WAIT, "a quota of ZooKeeper is used up: raise it (setquota), or remove unused nodes"
    ),
    THROTTLED: ZooKeeperErrorCode("THROTTLEDOP", _REPEAT, "the server has more requests than it can answer in time"),
}


def error_code(code: int) -> ZooKeeperErrorCode:
    """An unknown code, of a later version, ends what asked."""
    return ERROR_CODES.get(code) or ZooKeeperErrorCode("UNKNOWN", _END, "a code that ZooKeeper up to 3.9 does not have")


def described(code: int) -> str:
    known = error_code(code)
    return f"{known.meaning} ({known.name}, {code})"
