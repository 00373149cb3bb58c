"""The versions of applications in a Delta table: where the log has each partition.

`deltalake` reads the whole log since its last checkpoint for each question. So what it has found is kept, and brought
up to date from the entries that have been added since.

A table that was restored from a copy, and has grown again, may be at the version that is known, or a later one. So each
time the table is opened at least one entry is read that shows that the log is still the same: the entry that this
process has committed last, or the last one that is known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from io import BufferedIOBase
from typing import Final

import msgspec
from deltalake import DeltaTable

_FOLLOWED: Final = 20
"""Entries that are read one by one; after more of them everything is asked for again."""
_KEPT: Final = 10_000
"""Applications; a range that is asked for is one."""


class _Txn(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    version: int
    last_updated: int | None = None


class _Action(msgspec.Struct, frozen=True):
    txn: _Txn | None = None


_ACTIONS: Final = msgspec.json.Decoder(_Action)


class Applications:
    """Of one table; may be used by several threads. Methods raise as `deltalake`, and OSError."""

    def __init__(self, read: Callable[[str], BufferedIOBase]) -> None:
        """`read` opens a file of the table."""
        self._read = read
        self._lock = threading.Lock()
        self._table = ""
        self._at = -1
        self._found: dict[str, int | None] = {}
        self._entry: bytes | None = None  # the content of entry `_at`, None: not read
        self._is_same = False  # the log of the table that was opened last is the one that is known
        self._committed: tuple[int, Mapping[str, int], int] | None = None

    def opened(self) -> None:
        """The table was opened again."""
        with self._lock:
            self._is_same = False

    def committed(self, number: int, versions: Mapping[str, int], time: int) -> None:
        """This process has added the entry `number`, with these versions of applications and this time in each."""
        with self._lock:
            self._committed = number, versions, time

    def version(self, table: DeltaTable, application: str) -> int | None:
        """In the table as it was read; None if it has none."""
        with self._lock:
            if not self._follows(table):
                return table.transaction_version(application)
            if application not in self._found:
                if len(self._found) >= _KEPT:
                    self._found.clear()
                self._found[application] = table.transaction_version(application)
            return self._found[application]

    def _follows(self, table: DeltaTable) -> bool:
        """Bring what is kept to the table's version. False if that is an earlier one."""
        name, at = str(table.metadata().id), table.version()
        if name == self._table and at < self._at:
            return False
        if not (name == self._table and at <= self._at + _FOLLOWED and self._reads_on(range(self._at + 1, at + 1))):
            self._found.clear()
            self._entry = self._content(at)
        self._table, self._at, self._is_same = name, at, True
        return True

    def _reads_on(self, numbers: range) -> bool:
        """Keep what these entries say. False if one is missing, or if the log is not the one that is known."""
        contents = {number: self._content(number) for number in numbers}
        entries = {number: content for number, content in contents.items() if content is not None}
        found = {number: actions for number in entries if (actions := _decoded(entries[number])) is not None}
        if len(found) < len(numbers) or not (self._is_same or self._is_known(found)):
            return False
        for number in numbers:
            self._found |= {each.app_id: each.version for each in found[number]}
            self._entry = entries[number]
        return True

    def _is_known(self, later: Mapping[int, Sequence[_Txn]]) -> bool:
        """Whether the entry that was committed last is among `later` ones, or else the last known one is unchanged.

        What is before our own entry is what it was committed after.
        """
        if self._committed is not None and self._committed[0] in later:
            number, versions, time = self._committed
            return {each.app_id: each.version for each in later[number] if each.last_updated == time} == versions
        return self._entry is not None and self._content(self._at) == self._entry

    def _content(self, number: int) -> bytes | None:
        try:
            with self._read(f"_delta_log/{number:020d}.json") as file:
                return file.read()
        except FileNotFoundError:
            return None


def _decoded(entry: bytes) -> list[_Txn] | None:
    try:
        return [each.txn for each in _ACTIONS.decode_lines(entry) if each.txn is not None]
    except msgspec.DecodeError:
        return None
