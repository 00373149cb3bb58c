"""Reads the files of ZooKeeper's transaction log (`FileTxnLog`, version 2): what was changed, by which session, when.

A file begins with magic, version and database id. Each entry is an Adler-32 checksum, a length, so many bytes of jute
(a header, a record by its type, since 3.6 a digest that is ignored here) and `B`. Files are preallocated: zeros follow.
A server that is killed may leave its last entry incomplete.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

MAGIC = b"ZKLG"
VERSION = 2

_ERROR, _MULTI = -1, 14
_CREATE = (1, 15, 19, 21)  # create, create2, createContainer, createTTL
_DELETE = (2, 20)  # delete, deleteContainer
_SET_DATA, _CREATE_SESSION, _CLOSE_SESSION = 5, -10, -11
_CONTAINER, _TTL = 19, 21


class Create(NamedTuple):
    path: str
    data: bytes
    ephemeral: bool


class Delete(NamedTuple):
    path: str


class SetData(NamedTuple):
    path: str
    data: bytes
    version: int
    """The node's version after the change."""


class CreateSession(NamedTuple):
    timeout: int
    """Milliseconds."""


class CloseSession(NamedTuple):
    """The session's ephemeral nodes are deleted with it."""


Change: TypeAlias = Create | Delete | SetData | CreateSession | CloseSession


class Txn(NamedTuple):
    """One transaction; without changes if it failed, or if its type is not of interest (a check, an ACL)."""

    zxid: int
    session: int
    cxid: int
    """The client's number of the request; 0 if the leader made it itself, as when a session expires."""
    time: int
    """Milliseconds of the leader's clock, when it prepared the transaction."""
    changes: tuple[Change, ...]


class DamagedLogError(Exception):
    """A file that is no transaction log, or an entry whose content does not match its checksum."""


def read_folder(folder: Path) -> list[Txn]:
    """All transactions of a server's `version-2` folder, in order."""
    files = sorted(folder.glob("log.*"), key=lambda file: int(file.suffix[1:], 16))
    return [txn for file in files for txn in read(file.read_bytes())]


def read(content: bytes) -> Iterator[Txn]:
    """The complete entries of one file."""
    if len(content) < 16:
        return  # created, and killed before anything was written
    if content[:4] != MAGIC or struct.unpack_from("!i", content, 4) != (VERSION,):
        raise DamagedLogError(f"no transaction log of version {VERSION}: {content[:8]!r}")
    at = 16
    while at + 12 <= len(content):
        checksum, size = struct.unpack_from("!qi", content, at)
        entry, end = content[at + 12 : at + 12 + size], content[at + 12 + size : at + 13 + size]
        if size == 0 or end != b"B":
            return
        if zlib.adler32(entry) != checksum:
            raise DamagedLogError(f"checksum of the entry at byte {at}")
        yield _transaction(entry)
        at += 13 + size


def _transaction(entry: bytes) -> Txn:
    session, cxid, zxid, time, kind = struct.unpack_from("!qiqqi", entry)
    return Txn(zxid, session, cxid, time, tuple(_changes(kind, _Jute(entry, 32))))


def _changes(kind: int, record: _Jute) -> Iterator[Change]:
    if kind in _CREATE:
        path, data = record.text(), record.buffer()
        for _ in range(record.int()):  # its ACL
            record.int(), record.text(), record.text()
        yield Create(path, data, ephemeral=kind not in (_CONTAINER, _TTL) and record.boolean())
    elif kind in _DELETE:
        yield Delete(record.text())
    elif kind == _SET_DATA:
        yield SetData(record.text(), record.buffer(), record.int())
    elif kind == _CREATE_SESSION:
        yield CreateSession(record.int())
    elif kind == _CLOSE_SESSION:
        yield CloseSession()
    elif kind == _MULTI:
        parts = [(record.int(), record.buffer()) for _ in range(record.int())]
        if all(part != _ERROR for part, _ in parts):  # one that failed has errors from one of its operations on
            for part, content in parts:
                yield from _changes(part, _Jute(content, 0))


class _Jute:
    """Reads jute's types one after the other."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content = content
        self._at = at

    def int(self) -> int:
        (value,) = struct.unpack_from("!i", self._content, self._at)
        self._at += 4
        return int(value)

    def boolean(self) -> bool:
        self._at += 1
        return self._content[self._at - 1] != 0

    def buffer(self) -> bytes:
        """A missing one has the length -1."""
        size = max(self.int(), 0)
        self._at += size
        return self._content[self._at - size : self._at]

    def text(self) -> str:
        return self.buffer().decode()
