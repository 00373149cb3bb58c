"""Mutated record sets: both kernel sets read them alike, as a third parser does, and never outside their memory.

Checksums are ignored, so that mutations reach the record parsers. Input, decompressed bodies and outputs lie flush
against pages that may not be touched: one byte too far ends the process. `KZCONSUMER_FUZZ_CASES` makes the run longer,
`KZCONSUMER_FUZZ_SEED` another.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kzconsumer.records import batches, kernel_loading
from kzconsumer.records import layout as L
from kzconsumer.records.compression import BadCompression, Body, Scratch, decompress
from kzconsumer.records.decode import Decoded, decode_with
from kzconsumer.records.kernel_set import Cells, KernelSet, Read, Table
from kzconsumer.records.python_kernels import PYTHON_KERNELS
from kzconsumer.testing.record_sets import (
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

CASES = int(os.environ.get("KZCONSUMER_FUZZ_CASES", "8000"))
SEED = int(os.environ.get("KZCONSUMER_FUZZ_SEED", "1"))
ROOT = Path(__file__).parents[2]


class GuardedMemory:
    """Memory between two pages that may not be touched."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self.size = -(-size // page) * page
        self._map = mmap.mmap(-1, self.size + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.begin = start + page
        self.end = self.begin + self.size
        library = ctypes.CDLL(None, use_errno=True)
        for guard in (start, self.end):
            assert library.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0

    def room(self, size: int, *, at_end: bool = True) -> int:
        """The address of `size` bytes flush against one of the two pages."""
        assert size <= self.size
        return self.end - size if at_end else self.begin

    def put(self, data: bytes, *, at_end: bool = True) -> memoryview:
        address = self.room(len(data), at_end=at_end)
        ctypes.memmove(address, data, len(data))
        return memoryview((ctypes.c_char * len(data)).from_address(address)).cast("B")


class GuardedScratch(Scratch):
    """Gives every body, when it is kept, guarded memory of its own."""

    def keep(self, size: int) -> Body:
        self.memory = [*getattr(self, "memory", []), GuardedMemory(max(size, 1))]
        return np.frombuffer(self.memory[-1].put(super().keep(size).tobytes()), np.uint8)


def guarded(kernels: KernelSet) -> KernelSet:
    """The same kernels without checksums, writing into guarded memory of just the capacities."""
    memory = [GuardedMemory(1 << 18) for _ in range(L.OUTPUT_CELLS)]

    def guard(read: Read) -> Read:
        def read_guarded(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
            rows, size = state[L.S_ROW_CAPACITY : L.S_BYTE_CAPACITY + 1].tolist()
            binary = [4 * (rows + 1), size, (rows + 7) // 8]
            sizes = [8 * rows, 8 * rows, *binary, *binary, rows]
            inside = np.array([own.room(size) for own, size in zip(memory, sizes, strict=True)], np.int64)
            for address, own, size in zip(outputs.tolist(), inside.tolist(), sizes, strict=True):
                ctypes.memmove(own, address, size)
            result = read(table, first, until, inside, state)
            for address, own, size in zip(outputs.tolist(), inside.tolist(), sizes, strict=True):
                ctypes.memmove(address, own, size)
            return result

        return read_guarded

    return kernels._replace(
        scan=lambda address, size, check, table, crcs: kernels.scan(address, size, False, table, crcs),
        read_batches=guard(kernels.read_batches),
        read_messages=guard(kernels.read_messages),
    )


class Bad(Exception):
    """The reference parser's only complaint."""


class Reader:
    """Bytes read from the front; Bad when they do not suffice."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data):
            raise Bad
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def unpack(self, fields: str) -> tuple[Any, ...]:
        return struct.unpack(">" + fields, self.take(struct.calcsize(">" + fields)))

    def varint(self, most: int) -> int:
        number = 0
        for n in range(most):
            byte = self.take(1)[0]
            number += (byte % 128) << (7 * n)
            if byte < 128:
                number %= 1 << 64
                return -(number + 1) // 2 if number % 2 else number // 2
        raise Bad

    def field(self) -> bytes | None:
        size = self.varint(5)
        return None if size == -1 else self.take(size)

    def field32(self) -> bytes | None:
        (size,) = self.unpack("i")
        return None if size == -1 else self.take(size)


Row = tuple[int, int | None, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def opened(codec: int, magic: int, body: bytes) -> bytes:
    try:
        return decompress(codec, magic, memoryview(body), Scratch()).tobytes() if codec else body
    except BadCompression:
        raise Bad from None


def batch_rows(base: int, whole: Reader) -> tuple[int, Callable[[], Iterator[Row]]]:
    _, _, _, attributes, last, first_time, latest_time, _, _, _, count = whole.unpack("ibIhiqqqhii")
    if last < 0:
        raise Bad

    def rows() -> Iterator[Row]:
        codec = attributes & 7
        body = whole.data if codec and not whole.data else opened(codec, 2, whole.data)
        if not 0 <= count * 7 <= len(body):
            raise Bad
        reader = Reader(body)
        for _ in range(count):
            record = Reader(reader.take(reader.varint(5)))
            record.take(1)
            time, delta = record.varint(10), record.varint(5)
            key, value = record.field(), record.field()
            headers = []
            number = record.varint(5)
            if not 0 <= number <= len(record.data) // 2:
                raise Bad
            for _ in range(number):
                name = record.field()
                if name is None:
                    raise Bad
                headers.append((name.decode("utf-8", "replace"), record.field()))
            if record.data or not 0 <= delta <= last:
                raise Bad
            time = latest_time if attributes & 8 else wrapped(first_time + time)
            yield base + delta, None if time == -1 else time, attributes >> 3 & 1, key, value, headers
        if reader.data:
            raise Bad

    return base + last, (lambda: iter(())) if attributes & 0x20 else rows


def message_fields(magic: int, whole: Reader) -> tuple[int, int, bytes | None, bytes | None]:
    _, own_magic, attributes = whole.unpack("IbB")
    if own_magic != magic:
        raise Bad
    time = whole.unpack("q")[0] if magic else -1
    key, value = whole.field32(), whole.field32()
    if whole.data:
        raise Bad
    return attributes, time, key, value


def message_rows(offset: int, magic: int, whole: Reader) -> Callable[[], Iterator[Row]]:
    attributes, time, key, value = message_fields(magic, whole)
    kind = attributes >> 3 & 1 if magic else -1
    if not attributes & 7:
        return lambda: iter([(offset, None if time == -1 else time, kind, key, value, [])])
    if value is None:
        raise Bad

    def rows() -> Iterator[Row]:
        inner = Reader(opened(attributes & 7, magic, value))
        found: list[Row] = []
        while len(inner.data) >= 17:
            inner_offset, size = inner.unpack("qi")
            if size < 14 + 8 * magic:
                raise Bad
            if size > len(inner.data):
                break
            inner_attributes, inner_time, inner_key, inner_value = message_fields(magic, Reader(inner.take(size)))
            if inner_attributes & 7:
                raise Bad
            stamp = time if magic and kind else inner_time
            found.append((inner_offset, None if stamp == -1 else stamp, kind, inner_key, inner_value, []))
        if not found:
            raise Bad
        base = offset - found[-1][0] if magic else 0
        if abs(base) > L.MAX_OFFSET:  # it would overflow; Java lets it
            raise Bad
        for row in found:
            if not 0 <= row[0] + base <= offset:
                raise Bad
            yield row[0] + base, *row[1:]

    return rows


def reference(data: bytes, start: int) -> tuple[list[Row], int, bool, bool]:
    """(rows, next offset, incomplete, corrupt)"""
    out: list[Row] = []
    low = next_offset = start
    reader = Reader(data)
    any_batch = False
    try:
        while len(reader.data) >= 17:
            offset, size = reader.unpack("qi")
            if size < 14:
                raise Bad
            if size > len(reader.data):
                return out, next_offset, not any_batch, False
            magic = reader.data[4]
            if magic > 2 or not 0 <= offset <= L.MAX_OFFSET:
                raise Bad
            whole = Reader(reader.take(size))
            if magic == 2:
                last, rows = batch_rows(offset, whole)
            else:
                last, rows = offset, message_rows(offset, magic, whole)
            any_batch = True
            good = list(rows()) if last >= start else []
            for row in good:
                if row[0] >= low:
                    out.append(row)
                    low = row[0] + 1
            next_offset = max(next_offset, last + 1)
    except Bad:
        return out, next_offset, False, True
    return out, next_offset, bool(reader.data) and not any_batch, False


def plain(decoded: Decoded) -> tuple[list[Row], int, bool, bool]:
    rows: list[Row] = []
    if decoded.batch is not None:
        decoded.batch.validate(full=True)
        columns = {name: decoded.batch.column(name) for name in decoded.batch.schema.names}
        columns["timestamp"] = columns["timestamp"].cast("int64")
        names = ("offset", "timestamp", "timestamp_type", "key", "value")
        headers = [[(h["key"], h["value"]) for h in row] for row in columns["headers"].to_pylist() if row is not None]
        rows = list(zip(*(columns[name].to_pylist() for name in names), headers, strict=True))
    return rows, decoded.next_offset, decoded.incomplete, decoded.corrupt is not None


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
                field([0, 1, 8, 70]), field([0, 5, 100, 300]), tuple(header() for _ in range(rng.choice([0, 0, 1, 3])))
            )
            for _ in range(rng.choice([1, 2, 5, 9]))
        ]
        codec = rng.choice(list(CODECS))
        made.append(
            record_batch(records, base_offset=100) + record_batch(records, base_offset=120)[: rng.choice([70, 999])]
        )
        made.append(record_batch(records, base_offset=100, codec=codec, log_append_time=rng.choice([None, 7])))
        made.append(control_batch(90, producer_id=1, commit=True) + made[-1])
        for magic in (0, 1):
            made.append(message_set(records, magic=magic, base_offset=100))
            made.append(message_set(records, magic=magic, base_offset=100, codec=rng.choice(LEGACY_CODECS)))
            made.append(made[-1] + made[-2] + record_batch(records, base_offset=110))
    return made


PIECES = [
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xfe",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 10,
    b"\x80\x80\x80\x80\0",
]


def mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(9):
            case 0 | 1:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                changed[at : at + 1] = rng.choice(PIECES)
            case 3:
                changed[at:at] = rng.choice(PIECES)
            case 4:
                del changed[at : at + rng.randint(1, 12)]
            case 5:
                number = rng.choice([-1, -2, 0, 1, len(changed), 2**31 - 1, -(2**31), rng.randrange(-50, 500)])
                changed[at : at + 4] = struct.pack(">i", number)
            case 6:
                del changed[at:]
            case 7:  # a length that ends at the end of everything, or nearly so
                changed[at : at + 4] = struct.pack(">i", len(changed) - at - rng.randrange(10))
            case 8:
                length = varint(len(changed) - at - rng.randrange(10))
                changed[at : at + len(length)] = length
    return bytes(changed)


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


def differences(kernel_sets: list[KernelSet], cases: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Cases in which a kernel set does not do as the reference parser, and how many cases were of which kind."""
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
        start = rng.choice([0, 0, 101, 105])
        placed = area.put(data, at_end=rng.random() < 0.75)
        wanted = reference(data, start)
        kinds["corrupt" if wanted[3] else "good"] += 1
        kinds["rows"] += bool(wanted[0])
        for number, kernels in enumerate(kernel_sets):
            got = plain(decode_with(kernels, placed, "topic", 3, start))
            if got != wanted:
                found.append(f"kernels {number}, start {start}, {data.hex()}: {got} instead of {wanted}")
    return found, kinds


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[KernelSet]:
    monkeypatch.setattr(batches, "Scratch", GuardedScratch)
    return [guarded(kernel_loading.load_kernels()), guarded(PYTHON_KERNELS)]


def test_mutated_record_sets_are_read_alike_by_all(both: list[KernelSet]) -> None:
    found, kinds = differences(both, CASES, SEED)
    assert not found, f"{len(found)} differences, the first: {found[0]}"
    assert min(kinds["corrupt"], kinds["good"], kinds["rows"]) > CASES // 10, kinds


def test_mutated_bodies_are_decompressed_or_refused() -> None:
    rng = random.Random(SEED)
    text = b"some text, and some more. " * 40
    bodies = [(codec, number, compress(codec, text)) for codec, number in CODECS.items() if number]
    refused = 0
    for _ in range(CASES):
        codec, number, body = rng.choice(bodies)
        try:
            decompress(number, 1 if codec == "lz4-KAFKA-3160" else 2, memoryview(mutate(body, rng)), Scratch())
        except BadCompression:
            refused += 1
    assert CASES // 4 < refused < CASES


def test_control_a_kernel_that_misreads_is_found(both: list[KernelSet]) -> None:
    def wrong(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
        table[first, L.FIRST_TIMESTAMP] += 1
        return both[0].read_batches(table, first, until, outputs, state)

    assert differences([both[0]._replace(read_batches=wrong)], 50, seed=1)[0]


def test_control_a_kernel_that_accepts_too_much_is_found(both: list[KernelSet]) -> None:
    def wrong(address: int, size: int, check: bool, table: Table, crcs: Any) -> tuple[int, int, int]:
        status, position, rows = both[0].scan(address, size, check, table, crcs)
        return (L.OK if status > L.TABLE_FULL else status), position, rows

    assert differences([both[0]._replace(scan=wrong)], 1000, seed=1)[0]


@pytest.mark.parametrize("fault", ["reads before", "reads behind", "writes behind", "reads behind a body"])
def test_control_one_byte_outside_ends_the_process(fault: str) -> None:
    code = f"from tests.property.test_record_fuzz import stray; stray({fault!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV, done.stderr


def stray(fault: str) -> None:
    """Run the harness with a kernel that strays one byte, over good record sets only."""
    setattr(batches, "Scratch", GuardedScratch)  # noqa: B010
    kernels = PYTHON_KERNELS

    def scan(address: int, size: int, check: bool, table: Table, crcs: Any) -> tuple[int, int, int]:
        ctypes.string_at(address - 1 if fault == "reads before" else address, size + 1)
        return kernels.scan(address, size, check, table, crcs)

    def read(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
        if fault == "writes behind":
            ctypes.memset(int(outputs[L.O_VALUES]) + int(state[L.S_BYTE_CAPACITY]), 0, 1)
        elif table[first, L.ATTRIBUTES] & L.CODEC_MASK:
            ctypes.string_at(int(table[first, L.ADDRESS]), int(table[first, L.LENGTH]) + 1)
        return kernels.read_batches(table, first, until, outputs, state)

    changed = (
        kernels._replace(scan=scan)
        if fault in ("reads before", "reads behind")
        else kernels._replace(read_batches=read)
    )
    differences([guarded(changed)], len(seeds()), seed=1)
