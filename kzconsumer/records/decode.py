"""Decodes the record bytes of a fetch response into Arrow columns.

Does not raise on any input, and keeps no reference to the bytes. The heavy parts run without the GIL, so large
responses can be decoded in threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from kzconsumer.records import layout as L
from kzconsumer.records.batches import BatchTable
from kzconsumer.records.columns import RecordColumns
from kzconsumer.records.compression import NoRoom
from kzconsumer.records.forms import NO_RECORDS, ColumnRecords, Records
from kzconsumer.records.kernel_loading import load_kernels, ready_kernels
from kzconsumer.records.kernel_set import KernelSet
from kzconsumer.records.python_kernels import PYTHON_KERNELS

# Up to this many bytes the Python kernels are used while numba's are not loaded: some 10 ms, where loading takes 500.
QUICK_ENOUGH = 1 << 18


class Corruption(msgspec.Struct, frozen=True):
    """Why decoding stopped early."""

    offset: int
    """The first offset that was not decoded."""
    reason: str
    position: int
    """First byte of the batch that cannot be used, counted from the first byte given."""


class Decoded(msgspec.Struct, frozen=True):
    """What one fetch response held for one partition."""

    records: Records
    """All at or above the offset that was asked for (`start`)."""
    next_offset: int
    """Where to continue: behind the last offset of the decoded batches, even if that record was compacted away or is a
    control record. `start` if no batch was decoded, and always the offset of `corrupt`."""
    incomplete: bool = False
    """There were bytes but not one whole batch: the fetch size is too small."""
    corrupt: Corruption | None = None
    """The batch after the decoded ones cannot be used."""
    size: int = 0
    """Bytes of memory that `records` holds."""
    no_room: bool = False
    """The compressed batches need more than `room` bytes: nothing was decoded."""
    decompressed: int = 0
    """Bytes of the decompressed bodies."""


def decode(
    records: memoryview,
    *,
    topic: str,
    partition: int,
    start: int,
    aborted: Sequence[tuple[int, int]] = (),
    largest_body: int | None = None,
    room: int | None = None,
    kernels: KernelSet | None = None,
) -> Decoded:
    """Decode all whole batches in `records`: magic 0, 1 and 2, also mixed, and every codec. Never raises.

    `start`: the offset that was asked for; a response may begin before it. A batch cut off at the end is normal, and
    left out. Control batches give no rows. Bodies together are bounded: decoding stops before the batch that would take
    them beyond 256 MiB, so that `next_offset` may be below that of `scan_next_offset`.
    `aborted`: (producer id, first offset) of the aborted transactions that the response names (read_committed): their
    batches give no rows. A response names all that its records belong to, so no state is needed between calls.
    `largest_body`: a batch that decompresses to more bytes is corrupt (256 MiB if not given).
    `room`: the most bytes that all compressed batches together may decompress to, for calls from the event loop. Beyond
    it the result has `no_room`, after at most so many bytes of work, whatever sizes the batches declare.
    `kernels`: the ones to use; by default the best that are loaded.
    Matches `org.apache.kafka.clients.consumer.internals.CompletedFetch` (3.9) with `check.crcs`.
    """
    chosen = kernels or kernels_for(len(records))
    batches = BatchTable(records, chosen, largest_body, room)
    batches.scan(check=True)
    if aborted:
        batches.hide_aborted(aborted)
    incomplete = batches.partial and batches.rows == 0
    try:
        most_records, size = batches.open_bodies(start)
    except NoRoom:
        return Decoded(NO_RECORDS, start, no_room=True)
    if kernels is None and room is None and size > len(records):  # in a thread: there is time to load them
        chosen = kernels_for(size)
    batch = _read(batches, topic, partition, start, chosen, most_records, size)
    next_offset = batches.next_offset(start)
    corrupt = None if batches.fault is None else Corruption(next_offset, batches.fault, batches.fault_at)
    held = 0 if batch is None else batch.get_total_buffer_size()
    found = NO_RECORDS if batch is None else ColumnRecords(batch)
    return Decoded(found, next_offset, incomplete, corrupt, held, decompressed=batches.decompressed)


def scan_next_offset(records: memoryview, start: int) -> int:
    """`decode(records, start=start).next_offset` for intact data, from the framing alone.

    For the event loop: it never waits for numba's kernels.
    """
    batches = BatchTable(records, ready_kernels() or PYTHON_KERNELS)
    batches.scan(check=False)
    return batches.next_offset(start)


def warmed() -> bool:
    """Whether numba's kernels are loaded, or known not to load."""
    return ready_kernels() is not None


def compiled() -> bool:
    """Whether numba's kernels are in use."""
    return ready_kernels() not in (None, PYTHON_KERNELS)


def kernels_for(size: int) -> KernelSet:
    """The kernels to use for so many bytes: few bytes do not wait for numba's to load."""
    return ready_kernels() or (PYTHON_KERNELS if size <= QUICK_ENOUGH else load_kernels())


def _read(
    batches: BatchTable, topic: str, partition: int, start: int, kernels: KernelSet, records: int, size: int
) -> pa.RecordBatch | None:
    if batches.rows == 0:
        return None
    columns = RecordColumns(records, size, start)
    used = batches.table[: batches.rows]
    row = 0
    while row < len(used):
        read = kernels.read_batches if used[row, L.MAGIC] == 2 else kernels.read_messages
        status, _, row = read(used, row, len(used), columns.outputs, columns.state)
        if status != L.OK:
            batches.end(row, L.REASONS[status])
            break
    if columns.state[L.S_ROWS] == 0:
        return None
    return columns.build(topic, partition, batches.table[: batches.rows], kernels)
