"""Record bytes of a fetch response to one Arrow record batch: the door into this package for who wants columns.

Owns no state. Called by the fetcher, for much work from threads; the heavy parts run without the GIL. It does not raise
on any input, and keeps no reference to the bytes it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from kzconsumer.records import layout as L
from kzconsumer.records.batches import BatchTable
from kzconsumer.records.columns import SCHEMA, RecordColumns
from kzconsumer.records.compression import NoRoom
from kzconsumer.records.forms import NO_RECORDS, ColumnRecords, Records
from kzconsumer.records.kernel_loading import kernels_in_use, load_kernels, ready_kernels
from kzconsumer.records.kernel_set import KernelSet
from kzconsumer.records.python_kernels import PYTHON_KERNELS

__all__ = [
    "SCHEMA",
    "Corruption",
    "Decoded",
    "compiled",
    "decode",
    "kernels_in_use",
    "scan_next_offset",
    "warm",
    "warmed",
]

# Up to this many bytes the Python kernels are used while numba's are not loaded: some 10 ms, where loading takes 500.
QUICK_ENOUGH = 1 << 18


class Corruption(msgspec.Struct, frozen=True):
    """Why decoding stopped early."""

    offset: int
    """The first offset not decoded: everything below it was."""
    reason: str
    position: int
    """Where the batch that cannot be used begins, in bytes from the first one given."""


class Decoded(msgspec.Struct, frozen=True):
    """What one fetch response held for one partition."""

    records: Records
    """All at or above the offset that was asked for (`start`)."""
    next_offset: int
    """Where to go on: after the last offset that a decoded batch stands for, also when compaction or a control record
    took the record itself. `start` when no batch was decoded, and always the offset of `corrupt`."""
    incomplete: bool = False
    """There were bytes but not one whole batch: the fetch size is too small."""
    corrupt: Corruption | None = None
    """The batch after the decoded ones cannot be used."""
    size: int = 0
    """Bytes of memory that `records` holds."""
    no_room: bool = False
    """The compressed batches take more than the `room` given: nothing was decoded."""
    decompressed: int = 0
    """Bytes that compressed batches were decompressed to."""


def decode(
    records: memoryview,
    *,
    topic: str,
    partition: int,
    start: int,
    aborted: Sequence[tuple[int, int]] = (),
    largest_body: int | None = None,
    room: int | None = None,
) -> Decoded:
    """Decode all whole batches in `records`: magic 0, 1 and 2, also mixed, and every codec. Never raises.

    `start`: the offset that was asked for; a response may begin before it. A batch cut off at the end is normal and
    left out. Control batches give no rows. Bodies together are bounded: where they would exceed 256 MiB decoding stops
    before the batch that does it, so that `next_offset` may be below `scan_next_offset`'s.
    `aborted`: (producer id, first offset) of the aborted transactions that the response names (read_committed): their
    batches give no rows. A response names all that its records belong to, wherever it begins: nothing is kept.
    `largest_body`: a batch that decompresses to more bytes is corrupt (256 MiB if not given).
    `room`: for the event loop, the most bytes that all compressed batches together may decompress to. Beyond that the
    result has `no_room`, after at most so many bytes of work, whatever size the batches declare.
    Matches `org.apache.kafka.clients.consumer.internals.CompletedFetch` (3.9) with `check.crcs`.
    """
    return _decode(kernels_for, records, topic, partition, start, aborted, largest_body, room)


def decode_with(
    kernels: KernelSet,
    records: memoryview,
    topic: str,
    partition: int,
    start: int,
    aborted: Sequence[tuple[int, int]] = (),
    largest_body: int | None = None,
) -> Decoded:
    """`decode` by the kernels given."""
    return _decode(lambda _: kernels, records, topic, partition, start, aborted, largest_body, None)


def _decode(
    choose: Callable[[int], KernelSet],
    records: memoryview,
    topic: str,
    partition: int,
    start: int,
    aborted: Sequence[tuple[int, int]],
    largest_body: int | None,
    room: int | None,
) -> Decoded:
    """`choose`: the kernels for so many bytes."""
    kernels = choose(len(records))
    batches = BatchTable(records, kernels, largest_body, room)
    batches.scan(check=True)
    if aborted:
        batches.hide_aborted(aborted)
    incomplete = batches.partial and batches.rows == 0
    try:
        most_records, size = batches.open_bodies(start)
    except NoRoom:
        return Decoded(NO_RECORDS, start, no_room=True)
    if room is None and size > len(records):  # there is time to load the kernels for what has expanded
        kernels = choose(size)
    batch = _read(batches, topic, partition, start, kernels, most_records, size)
    next_offset = batches.next_offset(start)
    corrupt = None if batches.fault is None else Corruption(next_offset, batches.fault, batches.fault_at)
    held = 0 if batch is None else batch.get_total_buffer_size()
    found = NO_RECORDS if batch is None else ColumnRecords(batch)
    return Decoded(found, next_offset, incomplete, corrupt, held, decompressed=batches.decompressed)


def scan_next_offset(records: memoryview, start: int) -> int:
    """`decode(records, start=start).next_offset` for good data, by looking at the framing only.

    Quick enough for the event loop: it never waits for numba's kernels.
    """
    batches = BatchTable(records, ready_kernels() or PYTHON_KERNELS)
    batches.scan(check=False)
    return batches.next_offset(start)


def warm() -> None:
    """Load numba's kernels, compiling them if no cache has them: 0.5 to 15 s, to be spent in a thread at start."""
    load_kernels()


def warmed() -> bool:
    """Whether numba's kernels are loaded (or known not to load)."""
    return ready_kernels() is not None


def compiled() -> bool:
    """Whether numba's kernels are in use: Python's may stand in for them for ever."""
    return ready_kernels() not in (None, PYTHON_KERNELS)


def kernels_for(size: int) -> KernelSet:
    """The best there are, but few bytes do not wait for numba's."""
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
