"""The checksum of a range: independent of how it was cut into batches, and different for any other records."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from kzconsumer.records.columns import SCHEMA
from kzconsumer.sinks.planning import checksum
from tests.support.range_data import record

CELL = st.none() | st.binary(max_size=3)
RECORDS = st.lists(st.tuples(CELL, CELL), min_size=1, max_size=8)


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


@given(RECORDS, RECORDS, st.integers(0, 1))
def test_other_records_have_another(
    one: list[tuple[bytes | None, bytes | None]], two: list[tuple[bytes | None, bytes | None]], first: int
) -> None:
    assume((one, 0) != (two, first))
    assert checksum([batch(one)]) != checksum([batch(two, first)])


def test_of_nothing() -> None:
    assert checksum([]) == checksum([batch([])])
    assert checksum([batch([(None, None)])]) != checksum([batch([(b"", b"")])])
