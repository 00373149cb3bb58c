"""The server's side of ZooKeeper's wire format: requests from bytes, replies and events to bytes (3.8).

The simulated servers use it, so that the product's own session runs against them unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kzconsumer.zookeeper.operations import AclEntry, Check, Create, Delete, Operation, SetData, Stat
from kzconsumer.zookeeper.watch_table import EventType

CREATE, DELETE, EXISTS, GET, SET, GET_ACL, SYNC, PING, CHILDREN2, CHECK, MULTI, AUTH, SET_WATCHES, SASL, CLOSE = (
    1, 2, 3, 4, 5, 6, 9, 11, 12, 13, 14, 100, 101, 102, -11,
)  # fmt: skip
WRITES = frozenset({CREATE, DELETE, SET, MULTI})
EPHEMERAL = 1
OPEN = (AclEntry(31, "world", "anyone"),)

_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_HEADER = struct.Struct("!iqi")


class Handshake(NamedTuple):
    last_zxid: int
    timeout: float
    session: int
    password: bytes


class Request(NamedTuple):
    """`operations` of writes, `paths` of reads and syncs, `watches` of a SetWatches: data, exist, child.

    `path` of an AUTH is the scheme; `data` of that and of SASL what a client proves itself with.
    """

    xid: int
    kind: int
    operations: list[Operation] = []  # noqa: RUF012
    path: str = ""
    watch: bool = False
    watches: tuple[list[str], list[str], list[str]] = ([], [], [])
    since: int = 0
    data: bytes = b""


class OutsideChroot(Exception):
    """A client has named a node that is not below its chroot."""


class _Reader:
    def __init__(self, data: bytes, chroot: str = "") -> None:
        self._data = data
        self._at = 0
        self._chroot = chroot

    def take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from("!" + form, self._data, self._at)
        self._at += struct.calcsize("!" + form)
        return values

    def buffer(self) -> bytes:
        (size,) = self.take("i")
        self._at += max(size, 0)
        return self._data[self._at - max(size, 0) : self._at]

    def text(self) -> str:
        return self.buffer().decode()

    def path(self) -> str:
        """Below the chroot, which is the root of the simulated tree."""
        path = self.text()
        if path == "/":  # which is there, whatever the chroot: heartbeats check it
            return path
        if path != self._chroot and not path.startswith(f"{self._chroot}/"):
            raise OutsideChroot(path)
        return path.removeprefix(self._chroot) or "/"

    def paths(self) -> list[str]:
        (count,) = self.take("i")
        return [self.path() for _ in range(count)]


def handshake(frame: bytes) -> Handshake:
    reader = _Reader(frame)
    _, last_zxid, timeout, session = reader.take("iqiq")
    return Handshake(last_zxid, timeout / 1000, session, reader.buffer())


def established(session: int, password: bytes, timeout: float) -> bytes:
    return _framed(struct.pack("!iiq", 0, round(timeout * 1000), session) + _buffer(password) + b"\0")


def request(frame: bytes, chroot: str = "") -> Request:
    """Its paths are those below the chroot."""
    reader = _Reader(frame, chroot)
    xid, kind = reader.take("ii")
    match kind:
        case 1 | 2 | 5 | 13:
            return Request(xid, kind, [_operation(reader, kind)])
        case 14:
            operations: list[Operation] = []
            while True:
                inner, done, _ = reader.take("i?i")
                if done:
                    return Request(xid, kind, operations)
                operations.append(_operation(reader, inner))
        case 3 | 4 | 12:
            path = reader.path()
            (watch,) = reader.take("?")
            return Request(xid, kind, path=path, watch=bool(watch))
        case 6 | 9:
            return Request(xid, kind, path=reader.path())
        case 100:
            reader.take("i")
            return Request(xid, kind, path=reader.text(), data=reader.buffer())
        case 102:
            return Request(xid, kind, data=reader.buffer())
        case 101:
            (since,) = reader.take("q")
            return Request(xid, kind, since=since, watches=(reader.paths(), reader.paths(), reader.paths()))
        case _:
            return Request(xid, kind)


def reply(xid: int, zxid: int, code: int = 0, body: bytes = b"") -> bytes:
    return _framed(_HEADER.pack(xid, zxid, code) + (b"" if code else body))


def event(kind: EventType, path: str, chroot: str = "", zxid: int = -1) -> bytes:
    """As of ZooKeeper 3.9, which says of which transaction it is; before -1."""
    return _framed(_HEADER.pack(-1, zxid, 0) + struct.pack("!ii", kind, 3) + path_body(path, chroot))


def path_body(path: str, chroot: str = "") -> bytes:
    """As the client has named it."""
    return _buffer((chroot if chroot and path == "/" else chroot + path).encode())


def stat_body(stat: Stat, size: int, pzxid: int) -> bytes:
    return _STAT.pack(
        stat.czxid, stat.mzxid, stat.ctime, stat.mtime, stat.version, stat.cversion, 0,
        stat.ephemeral_owner, size, stat.num_children, pzxid,
    )  # fmt: skip


def data_body(data: bytes) -> bytes:
    return _buffer(data)


def acl_body(acl: Sequence[AclEntry]) -> bytes:
    entries = (_INT.pack(at.permissions) + _buffer(at.scheme.encode()) + _buffer(at.user.encode()) for at in acl)
    return _INT.pack(len(acl)) + b"".join(entries)


def names_body(names: Sequence[str]) -> bytes:
    return _INT.pack(len(names)) + b"".join(_buffer(name.encode()) for name in names)


def written_body(kind: int, operations: Sequence[Operation], stats: Sequence[Stat | None], chroot: str = "") -> bytes:
    """The reply of a write that was executed."""
    if kind == MULTI:
        parts = (
            struct.pack("!i?i", _kind(operation), False, 0) + _written(operation, stat, chroot)
            for operation, stat in zip(operations, stats, strict=True)
        )
        return b"".join(parts) + struct.pack("!i?i", -1, True, -1)
    return _written(operations[0], stats[0], chroot)


def failed_body(operations: int, index: int, code: int) -> bytes:
    """The reply of a transaction that was refused at one operation."""
    codes = [0] * index + [code] + [-2] * (operations - index - 1)
    return b"".join(struct.pack("!i?ii", -1, False, each, each) for each in codes) + struct.pack("!i?i", -1, True, -1)


def _operation(reader: _Reader, kind: int) -> Operation:
    path = reader.path()
    if kind == CREATE:
        data = reader.buffer()
        (acls,) = reader.take("i")
        acl = tuple(_entry(reader) for _ in range(acls))
        (flags,) = reader.take("i")
        return Create(path, data, ephemeral=bool(flags & EPHEMERAL), acl=acl if acl != OPEN else ())
    if kind == SET:
        data = reader.buffer()
        return SetData(path, data, *reader.take("i"))
    if kind == DELETE:
        return Delete(path, *reader.take("i"))
    return Check(path, *reader.take("i"))


def _entry(reader: _Reader) -> AclEntry:
    (permissions,) = reader.take("i")
    return AclEntry(permissions, reader.text(), reader.text())


def _kind(operation: Operation) -> int:
    match operation:
        case Create():
            return CREATE
        case SetData():
            return SET
        case Delete():
            return DELETE
        case Check():
            return CHECK


def _written(operation: Operation, stat: Stat | None, chroot: str) -> bytes:
    if isinstance(operation, Create):
        return path_body(operation.path, chroot)
    return stat_body(stat, len(operation.data), 0) if isinstance(operation, SetData) and stat is not None else b""


def _buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _framed(content: bytes) -> bytes:
    return _INT.pack(len(content)) + content


def status(cut_off: bool, read_only: bool) -> bytes:
    """The beginning of an answer to `srvr`."""
    if cut_off and not read_only:
        return b"This ZooKeeper instance is not currently serving requests\n"
    return b"Zookeeper version: simulated\n" + b"READ-ONLY mode; serving only read-only clients\n" * cut_off
