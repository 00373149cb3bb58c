"""The Spark sink with a real YARN of one node on loopback, which starts its application master and an executor."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kzconsumer.sinks.interface import Batch
from kzconsumer_sandbox.servers.configuration import HOST
from tests.support.extent import only_nightly
from tests.support.range_data import range_data
from tests.support.served_sink import ServedSink
from tests.support.yarn import Yarn

pytestmark = pytest.mark.timeout(600)
LIMIT = 120.0


@only_nightly
async def test_executors_of_yarn_write_into_a_shared_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yarn, out = Yarn(tmp_path / "yarn"), tmp_path / "out"
    options = {
        "destination": "parquet",
        "path": str(out),
        "master": "yarn",
        "start_timeout": "400s",
        "attempts": 1,
        "conf": {
            "spark.yarn.jars": f"local:{yarn.jars}/*",
            "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
            "spark.driver.host": HOST,
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
        },
    }
    yarn.start()
    try:
        yarn.wait_ready(LIMIT)
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
        async with ServedSink(options) as sink:
            application = sink.status["application"]
            await sink.write(Batch((range_data("t", 0, 0, 1000), range_data("t", 1, 5, 7))))
    finally:
        yarn.kill()
    assert str(application).startswith("application_"), "as YARN names it"
    rows = [row for file in sorted(out.glob("*.parquet")) for row in pq.read_table(file, partitioning=None).to_pylist()]
    assert [(row["partition"], row["offset"], row["value"]) for row in rows] == [
        *((0, offset, b"v%d" % offset) for offset in range(1000)),
        *((1, offset, b"v%d" % offset) for offset in (5, 6)),
    ]
    assert list(yarn.folder.rglob("container_*_01_000002")), "the executor's container"
