"""Every PySpark that the sink supports: files, a replay of them, and a function.

The newest patch of each, in a folder of the cache. Each starts two Sparks: `make test-spark-versions` runs it.
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kzconsumer.sinks.interface import Batch
from tests.support.other_spark import pyspark
from tests.support.range_data import range_data
from tests.support.served_sink import ServedSink
from tests.support.spark_functions import FUNCTION_DIRECTORY

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif("KZCONSUMER_SPARK_VERSIONS" not in os.environ, reason="make test-spark-versions runs it"),
]
VERSIONS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Workers that start from now on use it; this process has imported none."""
    assert isinstance(request.param, str)
    if request.param == metadata.version("pyspark"):
        return request.param
    monkeypatch.syspath_prepend(pyspark(request.param))
    return request.param


async def test_files_a_replay_and_a_function(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUNCTION_DIRECTORY, str(tmp_path))
    common: dict[str, object] = {"start_timeout": "400s", "attempts": 1, "value": {"format": "string"}}
    out = tmp_path / "out"
    parts = (range_data("t", 0, 0, 3), range_data("t", 1, 5, 7))
    async with ServedSink(common | {"destination": "parquet", "path": str(out)}) as sink:
        await sink.write(Batch(parts))
        written = {file.name: file.stat().st_mtime_ns for file in out.glob("*.parquet")}
        await sink.write(Batch((*parts, range_data("t", 2, 0, 1)), is_replay=True))
    files = sorted(out.glob("*.parquet"))
    assert len(files) == 3
    assert {file.name: file.stat().st_mtime_ns for file in files if file.name in written} == written
    rows = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
    assert [(row["partition"], row["offset"], row["value"]) for row in rows] == [
        *((0, offset, f"v{offset}") for offset in range(3)),
        *((1, offset, f"v{offset}") for offset in (5, 6)),
        (2, 0, "v0"),
    ]
    metadata_of = [dict(pq.read_metadata(file).metadata or {}) for file in files]
    assert {each[b"org.apache.spark.version"].decode() for each in metadata_of} == {version}

    called = common | {"destination": "function", "function": "tests.support.spark_functions:obey"}
    async with ServedSink(called) as sink:
        await sink.write(Batch(parts))
    (seen,) = tmp_path.glob("seen-*")
    assert [row["value"] for row in json.loads(seen.read_text())["rows"]] == [row["value"] for row in rows[:5]]
