"""The forms of fetched records: one interface, the same records, and a clear error for what a form does not support."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kzconsumer.records._native import allocated_bytes
from kzconsumer.records.columns import SCHEMA
from kzconsumer.records.decode import decode
from kzconsumer.records.forms import NO_RECORDS, RawRecords, Records
from tests.support.chunks import messages
from tests.support.record_sets import Record, record_batch

RECORDS = [
    Record(b"k", b"v", ((b"trace", b"\x00"), (b"caf\xe9", None)), 5),
    Record(None, b"", (), -1),
    Record(b"", None, (), 0),
]
DATA = memoryview(record_batch(RECORDS, base_offset=40, offset_deltas=[0, 7, 9]))


def decoded() -> Records:
    return decode(DATA, topic="orders", partition=3, start=0).records


@pytest.mark.parametrize(("first", "until"), [(0, None), (0, 2), (1, None), (1, 2), (2, 9), (3, None), (2, 1)])
def test_parts(first: int, until: int | None) -> None:
    """The same rows as messages and as columns."""
    part = decoded().slice(first, until)
    batch = part.columns()
    batch.validate(full=True)
    assert len(part) == batch.num_rows
    assert messages(part) == messages(decoded())[first:until]
    assert batch == decoded().columns().slice(first, max((3 if until is None else until) - first, 0))
    assert [batch.column(name).to_pylist() for name in ("offset", "key", "value")] == [
        [message.offset for message in messages(part)],
        [message.key for message in messages(part)],
        [message.value for message in messages(part)],
    ]


def test_a_part_of_a_part() -> None:
    part = decoded().slice(1).slice(1)
    assert [messages(part), part.columns()] == [messages(decoded())[2:], decoded().columns().slice(2)]


@pytest.mark.parametrize("headers", [(), ((b"trace", b"12345678"),)], ids=["plain", "headers"])
def test_bytes_are_those_of_the_columns(headers: tuple[tuple[bytes, bytes | None], ...]) -> None:
    some = [Record(b"key", bytes(n), headers) for n in range(300)] + [Record(None, None)] * 700
    records = decode(memoryview(record_batch(some, base_offset=0)), topic="orders", partition=3, start=0).records
    for part in (records, records.slice(100, 900), records.slice(700)):
        assert part.nbytes == pytest.approx(part.columns().nbytes, rel=0.01)


@pytest.mark.parametrize("offset", [0, 40, 41, 47, 48, 49, 50, 100])
def test_records_below_an_offset(offset: int) -> None:
    part = decoded().below(offset)
    assert [message.offset for message in messages(part)] == [each for each in (40, 47, 49) if each < offset]
    assert part.columns() == decoded().columns().slice(0, len(part))


def test_columns_outlive_what_they_are_made_of() -> None:
    records = decoded()
    batch = records.columns()
    columns = [batch.column(name) for name in batch.schema.names]
    wanted = decoded().columns().to_pylist()
    before = allocated_bytes()
    del records, batch
    assert allocated_bytes() == before
    assert pa.RecordBatch.from_arrays(columns, schema=SCHEMA).to_pylist() == wanted
    del columns
    assert allocated_bytes() < before


def test_a_range_without_records() -> None:
    assert (len(NO_RECORDS), messages(NO_RECORDS), NO_RECORDS.columns().num_rows) == (0, [], 0)
    assert len(NO_RECORDS.slice(0, 5)) == len(NO_RECORDS.below(7)) == 0


def test_raw_bytes_are_neither_iterated_nor_cut() -> None:
    raw = RawRecords(DATA, 10)
    assert (len(raw), raw.nbytes, bytes(raw.raw)) == (10, len(DATA), bytes(DATA))
    for refused in (lambda: raw.slice(0), lambda: raw.below(45), lambda: raw.decoded):
        with pytest.raises(TypeError, match="records fetched as raw bytes cannot be iterated"):
            refused()
    with pytest.raises(TypeError, match="records fetched as messages or columns cannot be had as raw bytes"):
        _ = decoded().raw
