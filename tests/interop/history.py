"""A group's history, from the transactions of its ensemble: who owned what when, and what was stored by whom."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from tests.interop.txn_log import CloseSession, Create, Delete, SetData, Txn

TOOL = "tool"
BROKER = "broker"
"""Who stored an offset that no member of the group stored: kafka-node commits through a broker."""


class End(Enum):
    """How the ownership of a partition ended."""

    OPEN = "it has not ended"
    RELEASED = "its member deleted the owner node"
    TAKEN = "another member deleted the owner node"
    CLOSED = "its member closed the session"
    EXPIRED = "the session expired"


@dataclass
class Ownership:
    """One life of an owner node. Times are seconds of the wall clock."""

    partition: int
    consumer: str
    """The id with which the session had registered."""
    session: int
    began: float
    zxid: int
    ended: float = float("inf")
    end: End = End.OPEN
    ended_by: str = ""
    last_zxid: int = 1 << 63
    """The transaction that ended it."""


@dataclass(frozen=True)
class Stored:
    """An offset was stored; `writer` is a consumer id, BROKER or TOOL."""

    partition: int
    offset: int
    writer: str
    at: float
    zxid: int


@dataclass(frozen=True)
class Registered:
    consumer: str
    session: int
    at: float


@dataclass
class History:
    """Everything in the order of ZooKeeper's transactions."""

    owned: list[Ownership] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    registered: list[Registered] = field(default_factory=list)

    def offsets(self) -> dict[int, int]:
        """What is stored at the end, by partition."""
        return {each.partition: each.offset for each in self.stored}


def history(txns: Iterable[Txn], group: str, topic: str, chroot: str = "") -> History:
    """Of one group and topic."""
    reader = _Reader(group, topic, chroot)
    for txn in txns:
        for change in txn.changes:
            if isinstance(change, CloseSession):
                reader.close(txn)
            elif isinstance(change, Create | SetData):
                reader.write(txn, change)
            elif isinstance(change, Delete):
                reader.delete(txn, change.path)
    return reader.found


class _Reader:
    def __init__(self, group: str, topic: str, chroot: str) -> None:
        root = re.escape(f"{chroot}/consumers/{group}")
        self._id = re.compile(f"{root}/ids/([^/]+)")
        self._owner = re.compile(rf"{root}/owners/{re.escape(topic)}/(\d+)")
        self._offset = re.compile(rf"{root}/offsets/{re.escape(topic)}/(\d+)")
        self._broker = re.compile(rf"{re.escape(chroot)}/brokers/ids/\d+")
        self._sessions: dict[int, str] = {}
        self._open: dict[int, Ownership] = {}
        self.found = History()

    def write(self, txn: Txn, change: Create | SetData) -> None:
        at = txn.time / 1000
        if offset := self._offset.fullmatch(change.path):
            value, writer = int(change.data), self._name(txn)
            self.found.stored.append(Stored(int(offset[1]), value, writer, at, txn.zxid))
        elif isinstance(change, Create) and (registration := self._id.fullmatch(change.path)):
            # A nudge is a node that a member creates and deletes in one transaction.
            if txn.session not in self._sessions:
                self._sessions[txn.session] = registration[1]
                self.found.registered.append(Registered(registration[1], txn.session, at))
        elif isinstance(change, Create) and self._broker.fullmatch(change.path):
            self._sessions[txn.session] = BROKER
        elif isinstance(change, Create) and (owner := self._owner.fullmatch(change.path)):
            began = Ownership(int(owner[1]), self._name(txn), txn.session, at, txn.zxid)
            self._open[began.partition] = began
            self.found.owned.append(began)

    def delete(self, txn: Txn, path: str) -> None:
        owner = self._owner.fullmatch(path)
        if owner and (ownership := self._open.pop(int(owner[1]), None)):
            by = self._name(txn)
            self._end(ownership, txn, End.RELEASED if by == ownership.consumer else End.TAKEN, by)

    def close(self, txn: Txn) -> None:
        """The client numbers its request to close; the leader gives its own no number."""
        end = End.CLOSED if txn.cxid else End.EXPIRED
        for ownership in [each for each in self._open.values() if each.session == txn.session]:
            del self._open[ownership.partition]
            self._end(ownership, txn, end, ownership.consumer)

    def _end(self, ownership: Ownership, txn: Txn, end: End, by: str) -> None:
        ownership.ended, ownership.last_zxid = txn.time / 1000, txn.zxid
        ownership.end, ownership.ended_by = end, by

    def _name(self, txn: Txn) -> str:
        return self._sessions.get(txn.session, TOOL)
