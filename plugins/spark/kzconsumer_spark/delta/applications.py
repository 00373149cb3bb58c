"""The versions of applications in a Delta table: where the log has each partition.

`deltalake` reads the whole log since its last checkpoint for each question. So what it has found is kept, and brought
up to date from the entries that have been added since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from io import BufferedIOBase
from typing import Final

import msgspec
from deltalake import DeltaTable

_FOLLOWED: Final = 20
"""Entries that are read one by one; after more of them everything is asked for again."""
_KEPT: Final = 10_000
"""Applications; a range that is asked for is one."""


class _Txn(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="appId")
    version: int


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
        if name != self._table or at > self._at + _FOLLOWED or not self._are_read(range(self._at + 1, at + 1)):
            self._found.clear()
        self._table, self._at = name, at
        return True

    def _are_read(self, entries: range) -> bool:
        """Whether all are there; what they say is kept then."""
        found: dict[str, int | None] = {}
        for number in entries:
            try:
                with self._read(f"_delta_log/{number:020d}.json") as file:
                    actions = _ACTIONS.decode_lines(file.read())
            except (FileNotFoundError, msgspec.DecodeError):
                return False
            found |= {each.txn.id: each.txn.version for each in actions if each.txn is not None}
        self._found |= found
        return True
