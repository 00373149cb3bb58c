"""Record bytes of a fetch response become columns; timestamps are read without decoding.

Nothing here raises on any input. `decode` keeps no reference to the bytes; its heavy parts run without the GIL, so
large responses can be decoded in threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

import msgspec
from crc32c import crc32c

from kzconsumer.records import _native
from kzconsumer.records import compression as L
from kzconsumer.records.compression import BadCompression, NoRoom, Scratch, decompress
from kzconsumer.records.forms import NO_RECORDS, DecodedRecords, Records


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
    epochs: tuple[tuple[int, int], ...] = ()
    """(first offset, leader epoch) of each run of batches of one epoch, in order: from `start`, or the end of the run
    before, to the next one, or `next_offset`. The epoch is -1 for magic 0 and 1, which have none."""


def decode(
    records: memoryview,
    *,
    topic: str,
    partition: int,
    start: int,
    aborted: Sequence[tuple[int, int]] = (),
    largest_body: int | None = None,
    room: int | None = None,
    check: bool = True,
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
    `check`: compare checksums, also those of the messages inside a compressed one.
    Reads what `org.apache.kafka.clients.consumer.internals.CompletedFetch` (3.9) reads with `check.crcs`, but for what
    brokers refuse: `tests/core/servers/test_records_java.py` lists it.
    """
    scratch: Scratch | None = None

    def open_body(codec: int, magic: int, body: memoryview) -> memoryview | str:
        nonlocal scratch
        if scratch is None:  # most batches of a few records are not compressed
            scratch = Scratch(largest_body, room)
        try:
            return decompress(codec, magic, body, scratch)
        except BadCompression as error:
            return str(error)

    try:
        columns, next_offset, incomplete, fault, fault_at, decompressed, epochs = _native.decode(
            records, start, aborted, L.MAX_BODY, crc32c if check else None, open_body
        )
    except NoRoom:
        return Decoded(NO_RECORDS, start, no_room=True)
    corrupt = None if fault is None else Corruption(next_offset, fault, fault_at)
    if columns is None:
        return Decoded(NO_RECORDS, next_offset, incomplete, corrupt, decompressed=decompressed, epochs=epochs)
    found = DecodedRecords(columns, topic, partition)
    return Decoded(found, next_offset, incomplete, corrupt, columns.held, decompressed=decompressed, epochs=epochs)


def scan_next_offset(records: memoryview, start: int) -> int:
    """`decode(records, start=start).next_offset` for intact data, from the framing alone."""
    return _native.scan_next_offset(records, start)


# Offset, size; [leader epoch or crc]; magic.
_BEGIN = Struct(">qi4xb")
# Of magic 1, after the magic: attributes, timestamp.
_MESSAGE = Struct(">bq")
# Of magic 2, after the magic: crc, attributes, last offset delta, first and largest timestamp.
_BATCH = Struct(">4xhiqq")
# Batches of one response that are looked at: the framing of small ones is not worth a walk through all of them.
MOST = 32


def batch_times(records: memoryview) -> Iterator[tuple[int, int]]:
    """(offset, timestamp in ms since 1970) of the first and last record of each of the first MOST batches, ascending.

    A message of the old format is a batch of one; in a compressed one the last record has the timestamp. Without
    timestamps (magic 0, before 0.10) there are none. Malformed bytes end it.
    """
    at = 0
    for _ in range(MOST):
        if at + L.LOG_OVERHEAD + L.MESSAGE_SIZE_V0 > len(records):
            return
        offset, size, magic = _BEGIN.unpack_from(records, at)
        rest = at + _BEGIN.size
        at += L.LOG_OVERHEAD + size
        if size <= 0 or at > len(records) or offset < 0:
            return
        if magic == 1 and rest + _MESSAGE.size <= at:
            _, time = _MESSAGE.unpack_from(records, rest)
            if time != L.NO_TIMESTAMP:
                yield offset, time
        elif magic == 2 and rest + _BATCH.size <= at:
            attributes, delta, first, largest = _BATCH.unpack_from(records, rest)
            if largest != L.NO_TIMESTAMP and delta >= 0:
                yield offset, largest if attributes & L.LOG_APPEND_TIME else first
                if delta:
                    yield offset + delta, largest
