"""Hostile records through the sinks `parquet` and `callable`: what comes out is what went in, or is refused by name.

The Spark source: tests/spark/servers/test_source_values.py, and at night with a Spark: test_value_matrix.py.
"""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pytest

from kzconsumer.offsets.progress import Message
from kzconsumer.sinks.builtin import CallableSink
from kzconsumer.sinks.interface import Batch, RecordsRejectedError, SinkContext
from kzconsumer_files.parquet import NO_TIME, ParquetSink
from tests.support.hostile_records import (
    decoded,
    differences,
    page,
    records,
    refused,
    rows_of_messages,
    rows_of_table,
)
from tests.support.range_data import range_data

GOOD, BAD = records(), refused()
CONTEXT = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)


async def test_parquet(tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with ParquetSink({"path": str(out)}, CONTEXT) as sink:
        await sink.write(Batch((range_data("t", 0, 0, len(GOOD), decoded(GOOD)),)))
    assert differences(rows_of_table(ds.dataset(out, format="parquet").to_table()), GOOD) == []
    found = duckdb.sql(f"SELECT * FROM read_parquet('{out}/*.parquet')").to_arrow_table()
    assert differences(rows_of_table(found), GOOD) == []


async def test_refused_records_are_named_one_by_one_and_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    mixed = [*BAD, *GOOD[:3]]
    async with ParquetSink({"path": str(out)}, CONTEXT) as sink:
        with pytest.raises(RecordsRejectedError) as caught:
            await sink.write(Batch((range_data("t", 0, 0, len(mixed), decoded(mixed)),)))
    assert [(each.offset, each.reason) for each in caught.value.records] == [(n, NO_TIME) for n in range(len(BAD))]
    assert list(out.glob("*.parquet")) == []


async def test_callable() -> None:
    """Also those that other sinks refuse: a function gets a number of milliseconds."""
    everything = [*GOOD, *BAD]
    given.clear()
    async with CallableSink({"function": f"{__name__}:take"}, CONTEXT) as sink:
        await sink.write(Batch((range_data("t", 0, 0, len(everything), decoded(everything)),)))
    assert differences(rows_of_messages(given), everything) == []


given: list[Message] = []


async def take(batch: Batch) -> None:
    for part in batch.ranges:
        given.extend(part.messages())


def test_the_page_has_this_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark-values.md").read_text()
    assert page() in text, "python -c 'from tests.support.hostile_records import page; print(page())'"
