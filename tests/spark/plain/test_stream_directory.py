"""The log by which the streaming query learns of the files of a batch. That Spark reads it: `test_spark_query`."""

from __future__ import annotations

import json
from pathlib import Path

from kzconsumer_spark.worker.range_stream import StreamDirectory


def entries(path: Path) -> dict[str, list[str]]:
    """The paths in each entry of the log."""
    found = {}
    for file in (path / "_spark_metadata").iterdir():
        version, *lines = file.read_text().splitlines()
        assert version == "v1"
        found[file.name] = [json.loads(line)["path"] for line in lines]
    return found


def test_only_the_latest_batch_is_listed_and_an_entry_that_may_be_read_stays(tmp_path: Path) -> None:
    stream = StreamDirectory(tmp_path / "query" / "stream")
    assert entries(stream.path) == {"0.compact": []}
    stream.publish(["/spool/0/0.parquet", "/spool/0/1.parquet"])
    stream.publish(["/spool/1/0.parquet"])
    assert entries(stream.path) == {
        "1.compact": ["file:///spool/0/0.parquet", "file:///spool/0/1.parquet"],
        "2.compact": ["file:///spool/1/0.parquet"],
    }
    assert [each.name for each in stream.path.iterdir()] == ["_spark_metadata"], "entries are complete when they appear"


def test_files_are_listed_by_uris(tmp_path: Path) -> None:
    stream = StreamDirectory(tmp_path)
    stream.publish(["/my data/é.parquet", "s3a://lake/my spool/0.parquet", "file:///a b"])
    assert entries(tmp_path)["1.compact"] == [
        "file:///my%20data/%C3%A9.parquet",
        "s3a://lake/my%20spool/0.parquet",
        "file:///a%20b",
    ]


def test_the_order_of_files_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    """Spark ignores files that are older than others by a week: a clock that is set back would stop the query."""
    stream = StreamDirectory(tmp_path)
    for _ in range(3):
        stream.publish(["/f"])
    times = [
        json.loads((tmp_path / "_spark_metadata" / f"{n}.compact").read_text().splitlines()[1])["modificationTime"]
        for n in (2, 3)
    ]
    assert times == [2, 3]
