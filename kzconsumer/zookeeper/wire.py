"""Requests to bytes, replies to values, error codes to our exceptions: all use of aiozk's codec is here.

Owns no state, does no IO. Called by the session only. It uses aiozk's record definitions and none of its sessions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec
from aiozk import exc, protocol
from aiozk.protocol.transaction import MultiHeader

from kzconsumer.errors import (
    BadVersion,
    ConnectionLost,
    KzConsumerError,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    NotPermitted,
    ProtocolError,
    ZooKeeperError,
)
from kzconsumer.zookeeper.operations import Check, Create, Delete, Node, Operation, SetData, Stat
from kzconsumer.zookeeper.watch import EventType, WatchKind

R = TypeVar("R")
T = TypeVar("T")

MAX_REQUEST = 1_000_000
"""Bytes. The server drops a connection that sends more than jute.maxbuffer, 1,048,575 unless set otherwise."""

WATCH_CHUNK = 100_000
"""Bytes of paths in one SetWatches."""

EVENT_XID = -1
SET_WATCHES_XID = -8
AUTH_XID = -4

OK = 0
RUNTIME_INCONSISTENCY = -2  # of a transaction's other operations, those after the one that failed
NO_NODE = -101

_REFUSALS: dict[int, Callable[[str], ZooKeeperError]] = {
    NO_NODE: NoNode,
    -102: NotPermitted,
    -103: BadVersion,
    -110: NodeExists,
    -111: NotEmpty,
}
_DROPS_US = frozenset({-112, -118})  # SessionExpired, SessionMoved

REFUSES_US: Final = {
    -115: "the server does not accept who we say we are (AUTH_FAILED)",
    -124: "the server serves only who has authenticated with SASL: [zookeeper.sasl]",
}
"""Codes of replies after which the server closes the connection, whatever was asked (`ZooKeeperServer`, 3.8)."""

Acl = Literal["open", "creator-writes", "creator-only"]
_ACLS: Final[dict[Acl, list[Any]]] = {
    "open": [protocol.UNRESTRICTED_ACCESS],
    # What the original consumer writes when it has logged in (`ZkUtils.defaultAcls`, 1.1.1).
    "creator-writes": [protocol.AUTHED_UNRESTRICTED, protocol.WORLD_READABLE],
    "creator-only": [protocol.AUTHED_UNRESTRICTED],
}

_EVENT_TYPES = frozenset(EventType)

_HEADER = struct.Struct("!iqi")
_CODE = struct.Struct("!i")
_SASL = struct.Struct("!ii")
_SASL_OPCODE = 102  # aiozk's own record of it cannot be made


class Request(msgspec.Struct, Generic[R], frozen=True):
    """What is asked (opcode and record, without xid) and how its reply reads."""

    path: str
    """For errors: the caller's own, without the chroot."""
    body: bytes
    decode: Callable[[bytes], R]


class Reply(NamedTuple):
    """Any frame but the first: a reply, or an event (`xid` EVENT_XID). zxid is <= 0 where the server tells none."""

    xid: int
    zxid: int
    code: int
    body: bytes


class Established(NamedTuple):
    """The server's answer to a handshake; session_id 0 says that the session is over."""

    session_id: int
    password: bytes
    timeout: float


def reply(frame: bytes) -> Reply:
    """Raises ProtocolError when the frame has no whole header."""
    if len(frame) < _HEADER.size:
        raise ProtocolError(f"a reply of {len(frame)} bytes has no header")
    xid, zxid, code = _HEADER.unpack_from(frame)
    return Reply(xid, zxid, code, frame[_HEADER.size :])


def handshake(session_id: int, password: bytes, timeout: float, last_zxid: int) -> bytes:
    """The first frame's content. session_id 0 asks for a new session. A server behind `last_zxid` refuses us."""
    request = protocol.ConnectRequest(
        protocol_version=0,
        last_seen_zxid=last_zxid,
        timeout=round(timeout * 1000),
        session_id=session_id,
        password=password,
        read_only=False,
    )
    return bytes(request.serialize())


def established(frame: bytes) -> Established:
    answer = _read(protocol.ConnectResponse.deserialize, frame)
    return Established(answer.session_id, answer.password or b"", answer.timeout / 1000)


def get(path: str, full: str, *, watch: bool = False) -> Request[Node]:
    def decode(body: bytes) -> Node:
        answer = protocol.GetDataResponse.deserialize(body)
        return Node(answer.data or b"", _stat(answer.stat))

    return _request(path, protocol.GetDataRequest(path=full, watch=watch), decode)


def exists(path: str, full: str, *, watch: bool = False) -> Request[Stat]:
    """Answered with NoNode where there is none."""
    request = protocol.ExistsRequest(path=full, watch=watch)
    return _request(path, request, lambda body: _stat(protocol.ExistsResponse.deserialize(body).stat))


def children(path: str, full: str, *, watch: bool = False) -> Request[list[str]]:
    def decode(body: bytes) -> list[str]:
        names = protocol.GetChildren2Response.deserialize(body).children
        if None in names:
            raise ProtocolError("a child without a name")
        return sorted(names)

    return _request(path, protocol.GetChildren2Request(path=full, watch=watch), decode)


def create(path: str, full: str, data: bytes, *, ephemeral: bool, acl: Acl = "open") -> Request[None]:
    return _request(path, _create(full, data, ephemeral, acl), _nothing)


def set_data(path: str, full: str, data: bytes, version: int) -> Request[Stat]:
    request = protocol.SetDataRequest(path=full, data=data, version=version)
    return _request(path, request, lambda body: _stat(protocol.SetDataResponse.deserialize(body).stat))


def delete(path: str, full: str, version: int) -> Request[None]:
    return _request(path, protocol.DeleteRequest(path=full, version=version), _nothing)


def sync(path: str, full: str) -> Request[None]:
    return _request(path, protocol.SyncRequest(path=full), _nothing)


def close_session(answered: Callable[[], None]) -> Request[None]:
    """`answered` is called while the reply is read."""
    return _request("", protocol.CloseRequest(), lambda body: answered())


def multi(
    operations: Sequence[Operation], full: Callable[[str], str], acl: Callable[[str], Acl] = lambda full: "open"
) -> Request[list[Stat | None]]:
    """All or nothing; the reply's decoding raises MultiFailed with the first operation that was the reason."""
    transaction = protocol.TransactionRequest()
    for operation in operations:
        at = full(operation.path)
        transaction.add(_operation(operation, at, acl(at)))
    paths = [operation.path for operation in operations]
    return _request(paths[0], transaction, lambda body: _results(body, paths))


def set_watches(last_zxid: int, paths: dict[WatchKind, list[str]]) -> bytes:
    """Arm again what was armed; what happened to a path after `last_zxid` fires at once."""
    request = protocol.SetWatchesRequest(
        relative_zxid=last_zxid,
        data_watches=paths[WatchKind.DATA],
        exist_watches=paths[WatchKind.EXIST],
        child_watches=paths[WatchKind.CHILD],
    )
    return bytes(request.serialize(None))


def add_auth(scheme: str, auth: bytes) -> Request[bytes]:
    """To be sent with AUTH_XID: from now on this connection is that user's, too."""
    return _request("", protocol.AuthRequest(type=0, scheme=scheme, auth=auth), bytes)


def sasl(token: bytes) -> Request[bytes]:
    """The answer is the server's next token, empty where it has no SASL."""
    return Request("", _SASL.pack(_SASL_OPCODE, len(token)) + token, _buffer)


def event(body: bytes) -> tuple[EventType, str] | None:
    """What happened to which path (the server's); None for events that are not about nodes."""
    answer = _read(protocol.WatchEvent.deserialize, body)
    if answer.type not in _EVENT_TYPES:
        return None
    return EventType(answer.type), answer.path


def result(request: Request[R], answer: Reply) -> R:
    """The reply's value. Raises what the server refused with, ConnectionLost when it drops us, ProtocolError."""
    if answer.code != OK:
        raise _error(answer.code, request.path)
    return _read(request.decode, answer.body)


def _request(path: str, record: Any, decode: Callable[[bytes], R]) -> Request[R]:
    body = bytes(record.serialize(None))
    if len(body) > MAX_REQUEST:
        raise ZooKeeperError(path, f"a request of {len(body)} bytes is more than a server takes ({MAX_REQUEST})")
    return Request(path, body, decode)


def _create(full: str, data: bytes, ephemeral: bool, acl: Acl, sequential: bool = False) -> Any:
    request = protocol.CreateRequest(path=full, data=data, acl=_ACLS[acl])
    request.set_flags(ephemeral=ephemeral, sequential=sequential)
    return request


def _operation(operation: Operation, full: str, acl: Acl) -> Any:
    match operation:
        case Create():
            return _create(full, operation.data, operation.ephemeral, acl, operation.sequential)
        case SetData():
            return protocol.SetDataRequest(path=full, data=operation.data, version=operation.version)
        case Delete():
            return protocol.DeleteRequest(path=full, version=operation.version)
        case Check():
            return protocol.CheckVersionRequest(path=full, version=operation.version)


def _results(body: bytes, paths: Sequence[str]) -> list[Stat | None]:
    stats: list[Stat | None] = []
    codes: list[int] = []
    header, offset = MultiHeader.parse(body, 0)
    while not header.done:
        stat, code = None, OK
        if header.type == -1:
            (code,) = _CODE.unpack_from(body, offset)
            offset += _CODE.size
        else:
            answer, offset = protocol.response_xref[header.type].parse(body, offset)
            if isinstance(answer, protocol.SetDataResponse):
                stat = _stat(answer.stat)
        stats.append(stat)
        codes.append(code)
        header, offset = MultiHeader.parse(body, offset)
    if len(codes) != len(paths):
        raise ProtocolError(f"{len(codes)} results for {len(paths)} operations")
    if not any(codes):
        return stats
    reasons = (index for index, code in enumerate(codes) if code not in (OK, RUNTIME_INCONSISTENCY))
    index = next(reasons, 0)
    error = _error(codes[index], paths[index])
    raise MultiFailed(index, error) if isinstance(error, ZooKeeperError) else error


def _error(code: int, path: str) -> ZooKeeperError | ConnectionLost:
    if code in _DROPS_US:
        # Not the last word on the session: the server closes the connection, and the next handshake tells.
        return ConnectionLost(f"the server does not serve this session here: {_name(code)}")
    if refusal := _REFUSALS.get(code):
        return refusal(path)
    return ZooKeeperError(path, _name(code))


def _name(code: int) -> str:
    known = exc.response_error_xref.get(code)
    return f"{known.__name__} ({code})" if known else f"error {code}"


def _stat(stat: Any) -> Stat:
    return Stat(
        czxid=stat.created_zxid,
        mzxid=stat.last_modified_zxid,
        version=stat.version,
        cversion=stat.child_version,
        ephemeral_owner=stat.ephemeral_owner,
        num_children=stat.num_children,
        ctime=stat.created,
        mtime=stat.modified,
    )


def _buffer(body: bytes) -> bytes:
    (size,) = _CODE.unpack_from(body)
    content = body[_CODE.size :]
    if max(size, 0) != len(content):  # -1 is null
        raise ProtocolError(f"{len(content)} bytes instead of {size}")
    return content


def _nothing(body: bytes) -> None:
    """Replies whose content tells nothing new."""


def _read(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except KzConsumerError:
        raise
    except Exception as error:  # the codec checks little: bytes that are no such reply may raise anything
        raise ProtocolError(f"unreadable reply: {error!r}") from error
