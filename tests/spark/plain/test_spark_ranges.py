"""Names of ranges, matching Spark's part files to ranges, and the columns of files."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from kzconsumer.records.checksums import Contents
from kzconsumer_files.parquet import record_table
from kzconsumer_files.range_names import data_file, ledger_entry, range_name
from kzconsumer_spark.ranges.batch import AsTheyCame, PartsRead, RowsLost, SparkBatch, counted, require_all
from kzconsumer_spark.ranges.staged_files import Part, PartMismatch, parts_by_range, read_part
from kzconsumer_spark.worker_protocol.messages import BatchRange, RunBatch, decode_command, encode
from tests.support.batch_ranges import batch_range
from tests.support.range_data import TIME, range_data, record


def planned(partition: int = 0, first: int = 10, until: int = 20, records: int = 8, epoch: int = 0) -> BatchRange:
    return batch_range("a.b-c", partition, first, until, incarnation=0x2A, records=records, epoch=epoch)


def part(
    name: str = "p", partition: int = 0, low: int = 10, high: int = 19, rows: int = 8, topic: str = "a.b-c"
) -> Part:
    return Part(Path(name), (topic, topic), (partition, partition), (low, high), rows)


def test_a_name_holds_the_whole_identity() -> None:
    assert range_name(planned(epoch=3)) == "a.b-c+0+2a.3+00000000000000000010+00000000000000000020"
    names = {
        range_name(each) for each in (planned(), planned(1), planned(first=9), planned(until=21), planned(epoch=1))
    }
    assert len(names) == 5


def test_a_ledger_entry_names_the_files_it_stands_for() -> None:
    entry = ledger_entry(planned(), 7, 1, ("day=1/x.parquet",), "mine/1")
    assert (entry.records_in, entry.records_out, entry.files, entry.attempt) == (8, 7, ("day=1/x.parquet",), "mine/1")


def test_the_files_of_a_range_in_one_directory_are_numbered() -> None:
    assert data_file(planned(), "json.gz", 2) == f"{range_name(planned())}+2.json.gz"
    assert data_file(planned(), "orc") == f"{range_name(planned())}.orc"


def test_messages_round_trip_through_the_pipe() -> None:
    batch = RunBatch(number=5, ranges=(planned(),))
    line = encode(batch)
    assert line.endswith(b"\n")
    assert decode_command(line) == batch


def test_parts_are_matched_by_their_content() -> None:
    """A range has a file of each task that fetched a part of it."""
    ranges = [planned(0), planned(1)]
    matched = parts_by_range([part("x", 1), part("z", 0, low=15), part("y", 0, high=14)], ranges)
    assert {each.range: [found.path.name for found in files] for each, files in matched.items()} == {
        ranges[1].range: ["x"],
        ranges[0].range: ["y", "z"],
    }


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([part(low=9)], "holds 8 rows 9..19"),
        ([part(high=20)], "holds 8 rows 10..20"),
        ([part(partition=1)], "which was not asked for"),
        ([part(topic="other")], "which was not asked for"),
        ([Part(Path("p"), ("a.b-c", "a.b-c"), (0, 1), (10, 19), 8)], "which was not asked for"),
    ],
)
def test_parts_that_are_of_no_range_are_refused(parts: list[Part], problem: str) -> None:
    with pytest.raises(PartMismatch, match=problem):
        parts_by_range(parts, [planned()])


def test_a_footer_describes_the_content_of_a_file(tmp_path: Path) -> None:
    table = pa.table({"topic": ["t"] * 4, "partition": pa.array([2] * 4, pa.int32()), "offset": [5, 6, 9, 11]})
    pq.write_table(table, tmp_path / "p", row_group_size=2)
    assert read_part(tmp_path / "p") == Part(tmp_path / "p", ("t", "t"), (2, 2), (5, 11), 4)


@pytest.mark.parametrize("missing", ["topic", "partition", "offset"])
def test_a_footer_without_the_description_is_refused(tmp_path: Path, missing: str) -> None:
    table = pa.table({"topic": ["t"], "partition": [2], "offset": [5]})
    pq.write_table(table.drop_columns([missing]), tmp_path / "column")
    pq.write_table(table, tmp_path / "statistics", write_statistics=[c for c in table.column_names if c != missing])
    with pytest.raises(PartMismatch, match=f"no column {missing}"):
        read_part(tmp_path / "column")
    with pytest.raises(PartMismatch, match=f"no statistics of {missing}"):
        read_part(tmp_path / "statistics")


def test_a_footer_that_describes_only_a_part_of_a_file_is_refused(tmp_path: Path) -> None:
    """A group of rows without a value has no statistics; a file without rows has no groups."""
    for file, offsets in (("some", [5, 6, None, None]), ("none", list[int]())):
        count = len(offsets)
        columns = pa.array(["t"] * count, pa.string()), pa.array([2] * count, pa.int32()), pa.array(offsets, pa.int64())
        table = pa.table(dict(zip(("topic", "partition", "offset"), columns, strict=True)))
        pq.write_table(table, tmp_path / file, row_group_size=2)
    with pytest.raises(PartMismatch, match="no statistics of offset"):
        read_part(tmp_path / "some")
    with pytest.raises(PartMismatch, match="no statistics of topic"):
        read_part(tmp_path / "none")


def test_columns_are_those_of_sparks_kafka_source() -> None:
    headers = [{"key": "h", "value": None}]
    rows = [record(0, headers=headers), record(1, timestamp=None, timestamp_type=-1, value=None)]
    table = record_table(range_data("t", 4, 0, 2, rows))
    assert table.column_names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert table.schema.field("timestampType").type == pa.int32()
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [TIME, None]
    assert table.column("headers").to_pylist() == [headers, None]


def test_columns_that_are_null_throughout_are_left_out() -> None:
    rows = [record(0, key=None, timestamp=None), record(1, key=None, timestamp=None)]
    assert record_table(range_data("t", 4, 0, 2, rows)).column_names == [
        "value", "topic", "partition", "offset", "timestampType",
    ]  # fmt: skip


class Leaving(AsTheyCame):
    leaves_out_rows = True


@pytest.mark.parametrize("shaping", [AsTheyCame(), Leaving()])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_rows_of_a_range_are_what_its_tasks_have_read(shaping: AsTheyCame, more: int) -> None:
    """Unless rows may be left out. What counts as read is what the ledger says of the records that came in."""
    other = planned(partition=1)
    part = planned()
    batch = SparkBatch(
        number=1,
        frame=cast(DataFrame, None),
        ranges=[other, part],
        read=lambda: {each.range.topic_partition: PartsRead(Contents(records=8), rejected=3) for each in (other, part)},
    )
    counted_rows = {part.range.topic_partition: 5 + more}
    if more and not shaping.leaves_out_rows:
        with pytest.raises(RowsLost, match=rf"wrote {5 + more} rows of a.b-c-0\[10\.\.20\), and its tasks read 5"):
            require_all(batch, counted_rows, shaping)
    else:
        require_all(batch, counted_rows, shaping)
    require_all(batch._replace(read=None), counted_rows, shaping)
    assert counted(part, 5, shaping).records == (part.records if shaping.leaves_out_rows else 5)
