"""The table of the batches in a fetch response: framing, checksums, transactions, decompressed bodies.

It neither reads records nor raises: a batch that cannot be used ends the table, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from kzconsumer.records import layout as L
from kzconsumer.records.compression import BadCompression, Body, Scratch, decompress
from kzconsumer.records.kernel_set import KernelSet, Table

# From this size on crc32c may release the GIL. Below, giving it up costs more than it gives: to get it back from
# a busy thread takes up to the interpreter's switch interval (5 ms), for a checksum of microseconds.
_RELEASE_GIL_FROM = 1 << 20

_POLYNOMIALS = (0x82F63B78, 0xEDB88320)  # CRC-32C of magic 2, CRC-32 of magic 0 and 1


def _build_tables() -> npt.NDArray[np.uint32]:
    """`tables[polynomial, k, byte]`: the CRC of `byte` followed by k zero bytes ("slicing by 8")."""
    tables = np.zeros((2, 8, 256), np.uint32)
    for table, polynomial in zip(tables, _POLYNOMIALS, strict=True):
        crc: npt.NDArray[Any] = np.arange(256, dtype=np.uint32)
        for _ in range(8):
            crc = (crc >> 1) ^ np.where(crc & 1, np.uint32(polynomial), np.uint32(0))
        table[0] = crc
        for k in range(1, 8):
            table[k] = (table[k - 1] >> 8) ^ table[0][table[k - 1] & 255]
    tables.setflags(write=False)
    return tables


TABLES = _build_tables()
"""Lookup tables of both checksums, for the kernels."""


class BatchTable:
    """The whole batches at the beginning of `records`, up to the first fault.

    `table[:rows]` are intact; `fault` is why what follows is not (None at a normal end). `partial`: the bytes end
    inside a batch.
    """

    def __init__(
        self, records: memoryview, kernels: KernelSet, largest_body: int | None = None, room: int | None = None
    ) -> None:
        """`room`: the most bytes that all compressed bodies together may take; `open_bodies` raises NoRoom beyond."""
        self.records = records
        self.fault: str | None = None
        self.fault_at = 0  # the byte where it begins
        self.partial = False
        self.rows = 0
        self._kernels = kernels
        self._buffer = pa.py_buffer(records)
        self._scratch = Scratch(largest_body, room)
        self._bodies: list[Body] = []
        self.table: Table = np.empty((0, L.TABLE_COLUMNS), np.int64)

    @property
    def decompressed(self) -> int:
        """Bytes of the bodies that `open_bodies` has decompressed."""
        return sum(map(len, self._bodies))

    def scan(self, *, check: bool) -> None:
        """Fill the table from the framing; `check` compares checksums as well."""
        size = len(self.records)
        capacity = max(16, size // 4096)
        while True:
            self.table = np.empty((capacity, L.TABLE_COLUMNS), np.int64)
            status, position, self.rows = self._kernels.scan(self._buffer.address, size, check, self.table, TABLES)
            if status != L.TABLE_FULL:
                break
            capacity *= 8
        if status == L.PARTIAL:
            self.partial = True
        elif status != L.OK:
            self.end(self.rows, L.REASONS[status], position)
        if check:
            self._check_pending()

    def hide_aborted(self, aborted: Sequence[tuple[int, int]]) -> None:
        """Mark the batches of aborted transactions as control batches, which give no records."""
        cells = np.empty((len(aborted), L.TRANSACTION_CELLS), np.int64)
        cells[:, : L.T_FIRST + 1] = sorted(aborted)
        producers = cells[:, L.T_PRODUCER]
        cells[:, L.T_NEXT] = np.searchsorted(producers, producers)
        status, row = self._kernels.hide_aborted(self.table, self.rows, cells)
        if status != L.OK:
            self.end(row, L.REASONS[status])

    def _check_pending(self) -> None:
        framing = self.table[: self.rows, : L.CRC + 1]
        rows = np.flatnonzero(framing[:, L.CRC] >= 0)
        for row, (position, end, crc) in zip(rows.tolist(), framing[rows].tolist(), strict=True):
            checked = self.records[position + L.CHECKED_FROM : end]
            if crc32c(checked, 0, int(len(checked) >= _RELEASE_GIL_FROM)) != crc:
                self.end(row, L.REASONS[L.BAD_CRC], position)
                return

    def end(self, row: int, reason: str, position: int | None = None) -> None:
        """End the table before `row`, which is corrupt."""
        if position is None:
            position = int(self.table[row, L.POSITION])
        self.rows = row
        self.partial = False
        self.fault_at = position
        self.fault = f"batch at byte {position}: {reason}"

    def next_offset(self, start: int) -> int:
        """The offset behind the last one of all batches in the table, but at least `start`."""
        return max(start, int(self.table[: self.rows, L.LAST].max()) + 1) if self.rows else start

    def open_bodies(self, start: int) -> tuple[int, int]:
        """Set ADDRESS and LENGTH of every row to its uncompressed records; SKIP rows without wanted records.

        Result: upper bounds of the records and their bytes. The table ends early, without fault, before the batch that
        would take all bodies together beyond MAX_BODY, but not before the first that is wanted.
        """
        rows, records, size, compressed = self._kernels.plan(self.table, self.rows, start, L.MAX_BODY)
        self._stop_before(rows)
        if compressed == 0:
            return records, size
        used = self.table[:rows]
        first = int(np.argmin(used[:, L.SKIP]))
        for row in np.flatnonzero((used[:, L.ATTRIBUTES] & L.CODEC_MASK != 0) & (used[:, L.SKIP] == 0)).tolist():
            try:
                size += self._open(row)
            except BadCompression as error:
                self.end(row, str(error))
                break
            if size > L.MAX_BODY and row > first:
                self._stop_before(row)
                break
        return self._kernels.plan(self.table, self.rows, start, 2 * L.MAX_BODY)[1:3]

    def _stop_before(self, row: int) -> None:
        if row < self.rows:
            self.rows, self.partial, self.fault = row, False, None

    def _open(self, row: int) -> int:
        """Decompress one row; by how many bytes it grew. Raises BadCompression, also for a bad inner message set."""
        entry = self.table[row]
        end, _, magic, attributes = entry[L.END : L.ATTRIBUTES + 1].tolist()
        length = int(entry[L.LENGTH])
        if magic == 2 and length == 0:
            return 0  # emptied by compaction
        codec = attributes & L.CODEC_MASK
        body = decompress(codec, magic, self.records[end - length : end], self._scratch)
        self._bodies.append(body)
        entry[L.ADDRESS], entry[L.LENGTH] = body.ctypes.data, len(body)
        if magic == 2:
            return len(body) - length
        status, _, count, last = self._kernels.count_messages(int(entry[L.ADDRESS]), len(body), magic)
        if status != L.OK:
            raise BadCompression(L.REASONS[status])
        if count == 0:
            raise BadCompression("a compressed message holds no message")
        entry[L.COUNT] = count
        if magic == 1:
            # KIP-31: inner offsets are relative, and the wrapper has the offset of the last inner message.
            base = int(entry[L.LAST]) - last
            if not -L.MAX_OFFSET <= base <= L.MAX_OFFSET:
                raise BadCompression(L.REASONS[L.BAD_OFFSET])
            entry[L.BASE] = base
        return len(body) - length
