"""The checksum of a range: independent of how it was cut into batches, and different for any other records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from kzconsumer.records.checksums import Contents, contents_of
from kzconsumer.records.columns import SCHEMA
from tests.support.range_data import record

CELL = st.none() | st.binary(max_size=3)
RECORDS = st.lists(st.tuples(CELL, CELL), min_size=1, max_size=8)


def checksum(batches: Sequence[pa.RecordBatch]) -> str:
    return contents_of(batches).checksum


def batch(cells: list[tuple[bytes | None, bytes | None]], first: int = 0) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"topic": "t", "partition": 0} | record(first + n, key=key, value=value) for n, (key, value) in enumerate(cells)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@given(RECORDS, st.sets(st.integers(0, 8)))
def test_where_batches_begin_makes_no_difference(cells: list[tuple[bytes | None, bytes | None]], at: set[int]) -> None:
    whole = batch(cells)
    cuts = sorted({0, len(cells), *(cut for cut in at if cut < len(cells))})
    views = [whole.slice(first, until - first) for first, until in pairwise(cuts)]
    copies = [batch(cells[first:until], first) for first, until in pairwise(cuts)]
    assert checksum([whole]) == checksum(views) == checksum(copies)
    assert len(checksum([whole])) == 40
    parts = [contents_of([each]) for each in copies]
    assert reduce(Contents.joined, parts) == reduce(Contents.joined, parts, Contents()) == contents_of([whole])
    assert contents_of([whole]).joined(Contents()) == contents_of([whole])


@given(RECORDS, RECORDS, st.integers(0, 1))
def test_other_records_have_another(
    one: list[tuple[bytes | None, bytes | None]], two: list[tuple[bytes | None, bytes | None]], first: int
) -> None:
    assume((one, 0) != (two, first))
    assert checksum([batch(one)]) != checksum([batch(two, first)])


def test_of_nothing() -> None:
    assert checksum([]) == checksum([batch([])])
    assert checksum([batch([(None, None)])]) != checksum([batch([(b"", b"")])])


def test_of_large_parts() -> None:
    """As the Castagnoli CRC of the whole, of sizes with many bits."""
    cells: list[tuple[bytes | None, bytes | None]] = [
        (b"k" * (n * 37 % 300), b"v" * (n * 4099 % 70_001)) for n in range(50)
    ]
    whole, parts = batch(cells), (batch(cells[:17]), batch(cells[17:], 17))
    assert contents_of(parts[:1]).joined(contents_of(parts[1:])) == contents_of([whole])


def test_the_checksum_of_stored_plans() -> None:
    """Members of an earlier version have planned with it."""
    assert checksum([batch([(b"k", None), (None, b"")], 7)]) == "d5b75228728c7b95ffffffffaa326b0800000000"
