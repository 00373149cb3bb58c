"""Frames from a ZooKeeper server: replies to values, error codes to exceptions, events.

Together with `wire`, which makes the requests, the only user of aiozk's codec.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from aiozk import protocol
from aiozk.protocol.transaction import MultiHeader

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
from kzconsumer.zookeeper.error_codes import (
    BAD_VERSION,
    ERROR_CODES,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    OK,
    RUNTIME_INCONSISTENCY,
    Handling,
    described,
    error_code,
)
from kzconsumer.zookeeper.operations import Stat
from kzconsumer.zookeeper.watch import EventType

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


class Request(msgspec.Struct, Generic[R], frozen=True):
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


def result(request: Request[R], answer: Reply) -> R:
    """The reply's value. Raises the server's refusal, ConnectionLostError if it drops the session, ProtocolError."""
    if answer.code != OK:
        raise _error(answer.code, request.path)
    return _read(request.decode, answer.body)


def results(body: bytes, paths: Sequence[str]) -> list[Stat | None]:
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
                stat = stat_of(answer.stat)
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


def stat_of(stat: Any) -> Stat:
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
