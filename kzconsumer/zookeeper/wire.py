"""Requests to ZooKeeper as bytes, each with the function that decodes its reply; and frames from a server.

The only user of aiozk's codec.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
from aiozk import protocol

from kzconsumer.errors import (
    BadVersionError,
    ConnectionLostError,
    KzConsumerError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NotNowError,
    NotPermittedError,
    ProtocolError,
    ZooKeeperError,
)
from kzconsumer.zookeeper.operations import (
    BAD_VERSION,
    ERROR_CODES,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    OK,
    RUNTIME_INCONSISTENCY,
    AclEntry,
    Check,
    Create,
    Delete,
    Handling,
    Node,
    Operation,
    SetData,
    Stat,
    described,
    error_code,
)
from kzconsumer.zookeeper.watch_table import EventType, WatchKind

# Frames from a server: replies to values, error codes to exceptions, events.

R = TypeVar("R")
T = TypeVar("T")

EVENT_XID = -1
SET_WATCHES_XID = -8
AUTH_XID = -4

_REFUSALS: dict[int, Callable[[str], ZooKeeperError]] = {
    NO_NODE: NoNodeError,
    NO_AUTH: NotPermittedError,
    BAD_VERSION: BadVersionError,
    NODE_EXISTS: NodeExistsError,
    NOT_EMPTY: NotEmptyError,
}

REFUSES_US: Final = {code: known.meaning for code, known in ERROR_CODES.items() if known.handling is Handling.REFUSED}
"""Codes of replies after which the server closes the connection, whatever was asked (`ZooKeeperServer`, 3.8)."""

_EVENT_TYPES = frozenset(EventType)

_HEADER = struct.Struct("!iqi")
_CODE = struct.Struct("!i")


class WireRequest(msgspec.Struct, Generic[R], frozen=True):
    """A request's body (opcode and record, without xid) and the function that decodes its reply."""

    path: str
    """For errors: the caller's path, without the chroot."""
    body: bytes
    decode: Callable[[bytes], R]


class Reply(NamedTuple):
    """Any frame but the first: a reply, or an event (`xid` EVENT_XID). zxid is <= 0 if the server gives none."""

    xid: int
    zxid: int
    code: int
    body: bytes


class Established(NamedTuple):
    """The server's answer to a handshake; session_id 0: the session has expired."""

    session_id: int
    password: bytes
    timeout: float


def reply(frame: bytes) -> Reply:
    """Raises ProtocolError if the header is incomplete."""
    if len(frame) < _HEADER.size:
        raise ProtocolError(f"a reply of {len(frame)} bytes has no header")
    xid, zxid, code = _HEADER.unpack_from(frame)
    return Reply(xid, zxid, code, frame[_HEADER.size :])


def established(frame: bytes) -> Established:
    answer = _read(protocol.ConnectResponse.deserialize, frame)
    return Established(answer.session_id, answer.password or b"", answer.timeout / 1000)


def event(body: bytes) -> tuple[EventType, str] | None:
    """Type and path (with chroot); None for events that are not about nodes."""
    answer = _read(protocol.WatchEvent.deserialize, body)
    if answer.type not in _EVENT_TYPES:
        return None
    return EventType(answer.type), answer.path


def result(request: WireRequest[R], answer: Reply) -> R:
    """The reply's value. Raises the server's refusal, ConnectionLostError if it drops the session, ProtocolError."""
    if answer.code != OK:
        raise _error(answer.code, request.path)
    return _read(request.decode, answer.body)


# A commit of a thousand partitions has three thousand operations. aiozk's codec takes 20 us for each, and as long for
# its result: no record would be handed out for a tenth of a second. So what is many in a transaction is packed here,
# and every stat of a node is unpacked here.
_PART = struct.Struct("!i?i")
"""Before each operation and each result: its opcode, whether the transaction ends here, an error code."""
_STAT = struct.Struct("!qqqqiiiqiiq")
_CHECK, _SET_DATA = protocol.CheckVersionRequest.opcode, protocol.SetDataRequest.opcode
_FAILED = _END = -1
"""Opcodes of results: of an operation that failed; of the end, in a request, too."""


def results(body: bytes, paths: Sequence[str]) -> list[Stat | None]:
    stats: list[Stat | None] = []
    codes: list[int] = []
    opcode, ends, _ = _PART.unpack_from(body)
    offset = _PART.size
    while not ends:
        stat, code = None, OK
        if opcode == _FAILED:
            (code,) = _CODE.unpack_from(body, offset)
            offset += _CODE.size
        elif opcode == _SET_DATA:
            stat = _stat_at(body, offset)
            offset += _STAT.size
        elif opcode != _CHECK:  # which has no result
            _, offset = protocol.response_xref[opcode].parse(body, offset)
        stats.append(stat)
        codes.append(code)
        opcode, ends, _ = _PART.unpack_from(body, offset)
        offset += _PART.size
    if len(codes) != len(paths):
        raise ProtocolError(f"{len(codes)} results for {len(paths)} operations")
    if not any(codes):
        return stats
    reasons = (index for index, code in enumerate(codes) if code not in (OK, RUNTIME_INCONSISTENCY))
    index = next(reasons, 0)
    error = _error(codes[index], paths[index])
    if isinstance(error, ConnectionLostError | NotNowError):
        raise error
    raise MultiFailedError(index, error)


def _error(code: int, path: str) -> ZooKeeperError | ConnectionLostError:
    if refusal := _REFUSALS.get(code):
        return refusal(path)
    handling = error_code(code).handling
    if handling is Handling.RECONNECT:
        # The session need not be over: the next handshake decides.
        return ConnectionLostError(f"the server does not serve this session here: {described(code)}")
    if handling in (Handling.REPEAT, Handling.WAIT):
        return NotNowError(path, described(code), wait=handling is Handling.WAIT)
    return ZooKeeperError(path, described(code))


def _stat_at(body: bytes, offset: int = 0) -> Stat:
    czxid, mzxid, ctime, mtime, version, cversion, _, owner, _, children, _ = _STAT.unpack_from(body, offset)
    return Stat(czxid, mzxid, version, cversion, owner, children, ctime, mtime)


def buffer(body: bytes) -> bytes:
    (size,) = _CODE.unpack_from(body)
    content = body[_CODE.size :]
    if max(size, 0) != len(content):  # -1 is null
        raise ProtocolError(f"{len(content)} bytes instead of {size}")
    return content


def nothing(body: bytes) -> None:
    """For replies whose content is not used."""


def _read(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except KzConsumerError:
        raise
    except Exception as error:  # the codec checks little: malformed bytes may raise anything
        raise ProtocolError(f"unreadable reply: {error!r}") from error


MAX_REQUEST = 1_000_000
"""Bytes. The server drops a connection that sends more than jute.maxbuffer, 1,048,575 unless set otherwise."""

WATCH_CHUNK = 50_000
"""Bytes of paths in one SetWatches."""

Acl = Literal["open", "creator-writes", "creator-only"]
_ACLS: Final[dict[Acl, list[Any]]] = {
    "open": [protocol.UNRESTRICTED_ACCESS],
    # As the original consumer when it is authenticated (`ZkUtils.defaultAcls`, 1.1.1).
    "creator-writes": [protocol.AUTHED_UNRESTRICTED, protocol.WORLD_READABLE],
    "creator-only": [protocol.AUTHED_UNRESTRICTED],
}

_SASL = struct.Struct("!ii")
_SASL_OPCODE = 102  # aiozk's record of it cannot be constructed


def handshake(session_id: int, password: bytes, timeout: float, last_zxid: int) -> bytes:
    """The first frame's content. session_id 0 asks for a new session; a server behind `last_zxid` refuses it."""
    request = protocol.ConnectRequest(
        protocol_version=0,
        last_seen_zxid=last_zxid,
        timeout=round(timeout * 1000),
        session_id=session_id,
        password=password,
        read_only=False,
    )
    return bytes(request.serialize())


def get(path: str, full: str, *, watch: bool = False) -> WireRequest[Node]:
    def decode(body: bytes) -> Node:
        (size,) = _CODE.unpack_from(body)
        if size < -1:
            raise ProtocolError(f"content of {size} bytes")
        end = _CODE.size + max(size, 0)  # -1 is null
        return Node(body[_CODE.size : end], _stat_at(body, end))

    return _request(path, protocol.GetDataRequest(path=full, watch=watch), decode)


def exists(path: str, full: str, *, watch: bool = False) -> WireRequest[Stat]:
    """The reply is NoNodeError if there is none."""
    request = protocol.ExistsRequest(path=full, watch=watch)
    return _request(path, request, _stat_at)


def children(path: str, full: str, *, watch: bool = False) -> WireRequest[list[str]]:
    def decode(body: bytes) -> list[str]:
        names = protocol.GetChildren2Response.deserialize(body).children
        if None in names:
            raise ProtocolError("a child without a name")
        return sorted(names)

    return _request(path, protocol.GetChildren2Request(path=full, watch=watch), decode)


def acl(path: str, full: str) -> WireRequest[tuple[AclEntry, ...]]:
    """Raises NotPermittedError also if the server hides a part of it: passwords, from users who may not set it."""

    def decode(body: bytes) -> tuple[AclEntry, ...]:
        found = [AclEntry(at.perms, at.id.scheme, at.id.id) for at in protocol.GetACLResponse.deserialize(body).acl]
        if any(entry.scheme == "digest" and entry.user.endswith(":x") for entry in found):
            raise NotPermittedError(path)
        return tuple(found)

    return _request(path, protocol.GetACLRequest(path=full), decode)


def create(path: str, full: str, data: bytes, *, ephemeral: bool, acl: Acl = "open") -> WireRequest[None]:
    return _request(path, _create(full, data, ephemeral, acl), nothing)


def set_data(path: str, full: str, data: bytes, version: int) -> WireRequest[Stat]:
    request = protocol.SetDataRequest(path=full, data=data, version=version)
    return _request(path, request, _stat_at)


def delete(path: str, full: str, version: int) -> WireRequest[None]:
    return _request(path, protocol.DeleteRequest(path=full, version=version), nothing)


def sync(path: str, full: str) -> WireRequest[None]:
    return _request(path, protocol.SyncRequest(path=full), nothing)


def close_session(answered: Callable[[], None]) -> WireRequest[None]:
    """`answered` is called while the reply is read."""
    return _request("", protocol.CloseRequest(), lambda body: answered())


def multi(
    operations: Sequence[Operation], full: Callable[[str], str], acl: Callable[[str], Acl] = lambda full: "open"
) -> WireRequest[list[Stat | None]]:
    """All or nothing; decoding the reply raises MultiFailedError with the operation that failed."""
    parts = [_CODE.pack(protocol.TransactionRequest.opcode)]
    for operation in operations:
        parts += _operation(operation, full, acl)
    parts.append(_PART.pack(_END, True, -1))
    paths = [operation.path for operation in operations]
    return _bounded(paths[0], b"".join(parts), lambda body: results(body, paths))


def set_watches(last_zxid: int, paths: dict[WatchKind, list[str]]) -> bytes:
    """Restore watches; those whose path has changed after `last_zxid` fire at once."""
    request = protocol.SetWatchesRequest(
        relative_zxid=last_zxid,
        data_watches=paths[WatchKind.DATA],
        exist_watches=paths[WatchKind.EXIST],
        child_watches=paths[WatchKind.CHILD],
    )
    return bytes(request.serialize(None))


def add_auth(scheme: str, auth: bytes) -> WireRequest[bytes]:
    """To be sent with AUTH_XID; adds a user to those that the connection is authenticated as."""
    return _request("", protocol.AuthRequest(type=0, scheme=scheme, auth=auth), bytes)


def sasl(token: bytes) -> WireRequest[bytes]:
    """The reply is the server's next token, empty if it has no SASL."""
    return WireRequest("", _SASL.pack(_SASL_OPCODE, len(token)) + token, buffer)


def _request(path: str, record: Any, decode: Callable[[bytes], R]) -> WireRequest[R]:
    return _bounded(path, bytes(record.serialize(None)), decode)


def _bounded(path: str, body: bytes, decode: Callable[[bytes], R]) -> WireRequest[R]:
    if len(body) > MAX_REQUEST:
        raise ZooKeeperError(path, f"a request of {len(body)} bytes is more than a server takes ({MAX_REQUEST})")
    return WireRequest(path, body, decode)


def _create(
    full: str, data: bytes, ephemeral: bool, acl: Acl, sequential: bool = False, own: Sequence[AclEntry] = ()
) -> Any:
    """`own`: the node's ACL, instead of `acl`."""
    entries = [
        protocol.acl.ACL(perms=each.permissions, id=protocol.acl.ID(scheme=each.scheme, id=each.user)) for each in own
    ]
    request = protocol.CreateRequest(path=full, data=data, acl=entries or _ACLS[acl])
    request.set_flags(ephemeral=ephemeral, sequential=sequential)
    return request


def _operation(operation: Operation, full: Callable[[str], str], acl: Callable[[str], Acl]) -> tuple[bytes, ...]:
    at = full(operation.path)
    match operation:
        case Check():
            return _PART.pack(_CHECK, False, -1), _counted(at.encode()), _CODE.pack(operation.version)
        case SetData():
            data, version = _counted(operation.data), _CODE.pack(operation.version)
            return _PART.pack(_SET_DATA, False, -1), _counted(at.encode()), data, version
        case Create():
            record = _create(at, operation.data, operation.ephemeral, acl(at), operation.sequential, operation.acl)
        case Delete():
            record = protocol.DeleteRequest(path=at, version=operation.version)
    opcode_and_record = bytes(record.serialize(None))
    return _PART.pack(record.opcode, False, -1), opcode_and_record[_CODE.size :]


def _counted(content: bytes) -> bytes:
    return _CODE.pack(len(content)) + content
