"""Requests to ZooKeeper as bytes, each with the function that decodes its reply (`wire_frames`)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar

from aiozk import protocol

from kzconsumer.errors import ProtocolError, ZooKeeperError
from kzconsumer.zookeeper.operations import Check, Create, Delete, Node, Operation, SetData, Stat
from kzconsumer.zookeeper.watch import WatchKind
from kzconsumer.zookeeper.wire_frames import Request, buffer, nothing, results, stat_of

R = TypeVar("R")

MAX_REQUEST = 1_000_000
"""Bytes. The server drops a connection that sends more than jute.maxbuffer, 1,048,575 unless set otherwise."""

WATCH_CHUNK = 100_000
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


def get(path: str, full: str, *, watch: bool = False) -> Request[Node]:
    def decode(body: bytes) -> Node:
        answer = protocol.GetDataResponse.deserialize(body)
        return Node(answer.data or b"", stat_of(answer.stat))

    return _request(path, protocol.GetDataRequest(path=full, watch=watch), decode)


def exists(path: str, full: str, *, watch: bool = False) -> Request[Stat]:
    """The reply is NoNodeError if there is none."""
    request = protocol.ExistsRequest(path=full, watch=watch)
    return _request(path, request, lambda body: stat_of(protocol.ExistsResponse.deserialize(body).stat))


def children(path: str, full: str, *, watch: bool = False) -> Request[list[str]]:
    def decode(body: bytes) -> list[str]:
        names = protocol.GetChildren2Response.deserialize(body).children
        if None in names:
            raise ProtocolError("a child without a name")
        return sorted(names)

    return _request(path, protocol.GetChildren2Request(path=full, watch=watch), decode)


def create(path: str, full: str, data: bytes, *, ephemeral: bool, acl: Acl = "open") -> Request[None]:
    return _request(path, _create(full, data, ephemeral, acl), nothing)


def set_data(path: str, full: str, data: bytes, version: int) -> Request[Stat]:
    request = protocol.SetDataRequest(path=full, data=data, version=version)
    return _request(path, request, lambda body: stat_of(protocol.SetDataResponse.deserialize(body).stat))


def delete(path: str, full: str, version: int) -> Request[None]:
    return _request(path, protocol.DeleteRequest(path=full, version=version), nothing)


def sync(path: str, full: str) -> Request[None]:
    return _request(path, protocol.SyncRequest(path=full), nothing)


def close_session(answered: Callable[[], None]) -> Request[None]:
    """`answered` is called while the reply is read."""
    return _request("", protocol.CloseRequest(), lambda body: answered())


def multi(
    operations: Sequence[Operation], full: Callable[[str], str], acl: Callable[[str], Acl] = lambda full: "open"
) -> Request[list[Stat | None]]:
    """All or nothing; decoding the reply raises MultiFailedError with the operation that failed."""
    transaction = protocol.TransactionRequest()
    for operation in operations:
        at = full(operation.path)
        transaction.add(_operation(operation, at, acl(at)))
    paths = [operation.path for operation in operations]
    return _request(paths[0], transaction, lambda body: results(body, paths))


def set_watches(last_zxid: int, paths: dict[WatchKind, list[str]]) -> bytes:
    """Restore watches; those whose path has changed after `last_zxid` fire at once."""
    request = protocol.SetWatchesRequest(
        relative_zxid=last_zxid,
        data_watches=paths[WatchKind.DATA],
        exist_watches=paths[WatchKind.EXIST],
        child_watches=paths[WatchKind.CHILD],
    )
    return bytes(request.serialize(None))


def add_auth(scheme: str, auth: bytes) -> Request[bytes]:
    """To be sent with AUTH_XID; adds a user to those that the connection is authenticated as."""
    return _request("", protocol.AuthRequest(type=0, scheme=scheme, auth=auth), bytes)


def sasl(token: bytes) -> Request[bytes]:
    """The reply is the server's next token, empty if it has no SASL."""
    return Request("", _SASL.pack(_SASL_OPCODE, len(token)) + token, buffer)


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
