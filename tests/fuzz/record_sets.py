"""Mutated record sets, read by the decoder and by the oracle.

Checksums are ignored, so that mutations reach the record parsers. Input and decompressed bodies lie flush against pages
that may not be touched: one byte too far ends the process.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from kzconsumer.records import compression as L
from kzconsumer.records import decode as decoder
from kzconsumer.records.compression import Scratch
from kzconsumer.records.decode import Decoded, decode
from tests.fuzz.guarded_memory import GuardedMemory
from tests.fuzz.mutations import int32, lengths_at_their_limits, mutate
from tests.fuzz.record_oracle import Read, Transactions, reference
from tests.support.chunks import messages
from tests.support.record_sets import (
    CODECS,
    LEGACY_CODECS,
    Record,
    compress,
    control_batch,
    message,
    message_set,
    record_batch,
    varint,
)

Decode: TypeAlias = Callable[[memoryview, int, Sequence[tuple[int, int]]], Decoded]
"""Decodes record bytes from an offset on, without the batches of some aborted transactions."""


class GuardedScratch(Scratch):
    """Gives every body, when it is kept, guarded memory of its own."""

    def keep(self, size: int) -> memoryview:
        memory = GuardedMemory(max(size, 1))
        self.memory = [*getattr(self, "memory", []), memory]
        return memory.put(super().keep(size).tobytes())


def guard_bodies() -> None:
    """From now on decompressed bodies lie in guarded memory."""
    setattr(decoder, "Scratch", GuardedScratch)  # noqa: B010


def decode_unchecked(records: memoryview, start: int, aborted: Sequence[tuple[int, int]]) -> Decoded:
    return decode(records, topic="topic", partition=3, start=start, aborted=aborted, check=False)


def plain(decoded: Decoded) -> Read:
    batch = decoded.records.columns()
    batch.validate(full=True)
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast("int64")
    names = ("offset", "timestamp", "timestamp_type", "key", "value")
    headers = [[(h["key"], h["value"]) for h in row] for row in columns["headers"].to_pylist() if row is not None]
    rows = list(zip(*(columns[name].to_pylist() for name in names), headers, strict=True))
    return rows, decoded.next_offset, decoded.incomplete, decoded.corrupt is not None, decoded.epochs


def idle(decoded: Decoded) -> list[str]:
    """Columns that say of each value whether it is there, though all are: what a bad batch has left behind."""
    batch = decoded.records.columns()
    headers = batch.column("headers")
    assert isinstance(headers, pa.ListArray)
    assert isinstance(headers.values, pa.StructArray)
    columns = {**{name: batch.column(name) for name in batch.schema.names}, "header": headers.values.field("value")}
    return [name for name, column in columns.items() if column.buffers()[0] is not None and not column.null_count]


def plain_rows(decoded: Decoded) -> Read:
    """The same, by way of messages."""
    rows = [
        (each.offset, each.timestamp, each.timestamp_type, each.key, each.value, list(each.headers))
        for each in messages(decoded.records)
    ]
    return rows, decoded.next_offset, decoded.incomplete, decoded.corrupt is not None, decoded.epochs


def seeds() -> list[bytes]:
    made: list[bytes] = []
    for seed in range(30):
        rng = random.Random(seed)

        def field(sizes: list[int], rng: random.Random = rng) -> bytes | None:
            return None if rng.random() < 0.15 else rng.randbytes(rng.choice(sizes))

        def header(rng: random.Random = rng) -> tuple[bytes, bytes | None]:
            return rng.choice([b"", b"h", b"name"]), field([0, 3, 70], rng)

        records = [
            Record(
                field([0, 1, 8, 70]),
                field([0, 5, 100, 300]),
                tuple(header() for _ in range(rng.choice([0, 0, 1, 3]))),
                rng.choice([1_700_000_000_000, 1_700_000_000_005, -1]),
            )
            for _ in range(rng.choice([1, 2, 5, 9]))
        ]
        codec = rng.choice(list(CODECS))
        made.append(record_batch(records, base_offset=100) + record_batch(records[:2], base_offset=120))
        made.append(
            record_batch(records, base_offset=100) + record_batch(records, base_offset=120)[: rng.choice([70, 999])]
        )
        made.append(record_batch(records, base_offset=100, codec=codec, log_append_time=rng.choice([None, 7])))
        made.append(record_batch(records, base_offset=100, offset_deltas=[n * n for n in range(len(records))]))
        made.append(control_batch(90, producer_id=1, commit=True) + made[-1])
        made += [transactions(records, rng) for _ in range(3)]
        for magic in (0, 1):
            made.append(message_set(records, magic=magic, base_offset=100))
            made.append(message_set(records, magic=magic, base_offset=100, codec=rng.choice(LEGACY_CODECS)))
            made.append(made[-1] + made[-2] + record_batch(records, base_offset=110))
    return made


PRODUCERS = (1, 2, 1 << 40)


def transactions(records: Sequence[Record], rng: random.Random) -> bytes:
    """Batches and markers of a few producers, from offset 90 on."""
    parts = []
    offset = 90
    for _ in range(rng.choice([2, 4, 7])):
        producer = rng.choice(PRODUCERS)
        if rng.random() < 0.5:
            some = records[: rng.randrange(len(records)) + 1]
            codec = rng.choice(list(CODECS))
            ordinary = rng.random() < 0.2
            parts.append(
                record_batch(some, base_offset=offset, codec=codec, transactional=not ordinary, producer_id=producer)
            )
            offset += len(some)
        else:
            parts.append(control_batch(offset, producer_id=producer, commit=rng.random() < 0.3))
            offset += 1
    return b"".join(parts)


def moved(data: bytes, by: int) -> bytes:
    """With higher offsets, and other leader epochs: of batches and messages, as far as they can be found."""
    out, at = bytearray(data), 0
    while by and at + L.LOG_OVERHEAD <= len(out):
        offset, size = struct.unpack_from(">qi", out, at)
        if 0 <= offset <= L.MAX_OFFSET - by:
            struct.pack_into(">q", out, at, offset + by)
        if size < L.MESSAGE_SIZE_V0:
            break
        if out[at + L.LOG_OVERHEAD + 4 : at + L.LOG_OVERHEAD + 5] == b"\2":
            struct.pack_into(">i", out, at + L.LOG_OVERHEAD, size % 3 - 1)
        at += L.LOG_OVERHEAD + size
    return bytes(out)


def mutate_inside(rng: random.Random) -> bytes:
    """A good wrapper or batch whose decompressed body is a mutated one."""
    fields = [None, b"", b"x", rng.randbytes(9)]
    records = [Record(rng.choice(fields), rng.choice(fields), ((b"h", b"x"),)) for _ in range(rng.choice([1, 2, 8]))]
    magic = rng.randrange(3)
    if magic == 2:
        body = mutate(record_batch(records, base_offset=0)[L.BATCH_HEADER :], rng)
        count = len(records) + rng.choice([0, 0, 0, -1, 1])
        body = compress("snappy-raw", body)
        return record_batch(records, base_offset=100, codec="snappy-raw", body=body, count=count)
    first = rng.choice([0, 100])
    inner = mutate(message_set(records, magic=magic, base_offset=first), rng)
    return message(
        magic, 99 + len(records), 7, None, compress("snappy-raw", inner), CODECS["snappy"] | rng.choice([0, 8])
    )


def limits() -> list[bytes]:
    """Record sets and bodies in which one length reaches the end of the memory that they lie in, or is negative."""
    records = [Record(b"k", b"value", ((b"h", b"x"), (b"", None))), Record(None, b"", ())]
    batch = record_batch(records, base_offset=100)
    header, body = batch[: L.BATCH_HEADER], batch[L.BATCH_HEADER :]
    made = [each for each in lengths_at_their_limits(batch, int32, [4]) if each[L.BATCH_HEADER :] == body]
    bodies = list(lengths_at_their_limits(body, varint, [1, 2]))
    made += [header + each for each in bodies]
    packed = [compress("snappy-raw", each) for each in bodies]
    made += [record_batch(records, base_offset=100, codec="snappy-raw", body=each) for each in packed]
    for magic in (0, 1):
        sets = list(lengths_at_their_limits(message_set(records, magic=magic, base_offset=100), int32, [4]))
        packed = [compress("snappy-raw", each) for each in sets]
        made += sets + [message(magic, 101, 7, None, each, CODECS["snappy"]) for each in packed]
    return made


def differences_at_limits(decode: Decode) -> tuple[list[str], Counter[str]]:
    """As `differences`, of all cases of `limits`, each of which ends where its memory does."""
    area = GuardedMemory(1 << 16)
    found, kinds = [], Counter[str]()
    for data in limits():
        wanted = reference(data, 0, Transactions([]))
        kinds["corrupt" if wanted[3] else "good"] += 1
        if (got := plain(decode(area.put(data), 0, []))) != wanted:
            found.append(f"{data.hex()}: {got} instead of {wanted}")
    return found, kinds


def difference(
    decode: Decode, placed: memoryview, start: int, aborted: Sequence[tuple[int, int]], kinds: Counter[str]
) -> list[str]:
    """What is wrong in the decoder's result, by columns and by messages."""
    data = placed.tobytes()
    followed = Transactions(aborted)
    wanted = reference(data, start, followed)
    kinds["corrupt" if wanted[3] else "good"] += 1
    kinds["rows"] += bool(wanted[0])
    kinds["hidden"] += followed.hidden > 0
    decoded = decode(placed, start, aborted)
    about = f"start {start}, aborted {aborted}, {data.hex()}"
    found = [f"{about}: {got} instead of {wanted}" for got in (plain(decoded), plain_rows(decoded)) if got != wanted]
    return found + [f"{about}: {name} has a bit for each value, and no null" for name in idle(decoded)]


def differences(decode: Decode, cases: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Cases in which a decoder does not do as the reference parser, and how many cases were of which kind."""
    rng = random.Random(seed)
    known = seeds()
    area = GuardedMemory(1 << 16)
    found: list[str] = []
    kinds: Counter[str] = Counter()
    for case in range(cases):
        if case < len(known):
            data = known[case]
        else:
            data = mutate_inside(rng) if rng.random() < 0.25 else mutate(rng.choice(known), rng)
        by = rng.choice([0, 0, 1 << 32, L.MAX_OFFSET - 200])
        start = by + rng.choice([0, 0, 101, 105])
        placed = area.put(moved(data, by), at_end=rng.random() < 0.75)
        aborted = [
            (rng.choice(PRODUCERS), by + rng.choice([0, 90, 90, 91, 92, 95, 100, 105, 120]))
            for _ in range(rng.choice([0, 1, 2, 5, 5]))
        ]
        found += difference(decode, placed, start, aborted, kinds)
    return found, kinds
