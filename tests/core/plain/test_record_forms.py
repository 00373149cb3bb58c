"""The forms of fetched records: one interface, the same records, and a clear error for what a form does not support."""

from __future__ import annotations

import pytest

from kzconsumer.records.decode import decode
from kzconsumer.records.few_records import decode_few
from kzconsumer.records.forms import NO_RECORDS, RawRecords, Records, Rows
from tests.support.record_sets import Record, record_batch

RECORDS = [
    Record(b"k", b"v", ((b"trace", b"\x00"), (b"caf\xe9", None)), 5),
    Record(None, b"", (), -1),
    Record(b"", None, (), 0),
]
DATA = memoryview(record_batch(RECORDS, base_offset=40, offset_deltas=[0, 7, 9]))


def both() -> tuple[Records, Records]:
    few = decode_few(DATA, topic="orders", partition=3, start=0)
    assert few is not None
    return few.records, decode(DATA, topic="orders", partition=3, start=0).records


def plain(rows: Rows) -> list[tuple[object, ...]]:
    headers = rows.headers or [()] * len(rows.offsets)
    return list(zip(rows.offsets, rows.keys, rows.values, rows.timestamps, rows.timestamp_types, headers, strict=False))


@pytest.mark.parametrize(("first", "until"), [(0, None), (0, 2), (1, None), (1, 2), (2, 9), (3, None), (2, 1)])
def test_parts_are_the_same_in_both_forms(first: int, until: int | None) -> None:
    few, columns = (records.slice(first, until) for records in both())
    assert len(few) == len(columns)
    assert plain(few.rows()) == plain(columns.rows())
    assert few.columns() == columns.columns()


@pytest.mark.parametrize("offset", [0, 40, 41, 47, 48, 49, 50, 100])
def test_records_below_an_offset(offset: int) -> None:
    few, columns = (records.below(offset) for records in both())
    assert len(few) == len(columns) == sum(each < offset for each in (40, 47, 49))
    assert few.columns() == columns.columns()


def test_a_range_without_records() -> None:
    assert (len(NO_RECORDS), plain(NO_RECORDS.rows()), NO_RECORDS.columns().num_rows) == (0, [], 0)
    assert len(NO_RECORDS.slice(0, 5)) == len(NO_RECORDS.below(7)) == 0


def test_raw_bytes_are_neither_iterated_nor_cut() -> None:
    raw = RawRecords(DATA, 10)
    assert (len(raw), raw.nbytes, bytes(raw.raw)) == (10, len(DATA), bytes(DATA))
    for refused in (lambda: raw.slice(0), lambda: raw.below(45), raw.rows):
        with pytest.raises(TypeError, match="records fetched as raw bytes cannot be iterated"):
            refused()
    for records in both():
        with pytest.raises(TypeError, match="records fetched as messages or columns cannot be had as raw bytes"):
            _ = records.raw
