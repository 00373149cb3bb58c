"""Offsets of a group in ZooKeeper handed over to Spark's own Kafka source, which has no group, and back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_spark.daemon.worker_process import java_environment
from tests.bench.spark_source import JARS
from tests.core.servers.test_offset_storage import fill
from tests.support.command_line import CommandLine
from tests.support.consuming import member, take
from tests.support.extent import only_nightly
from tests.support.jars import fetched
from tests.support.producing import Sent, produce
from tests.support.servers import Servers

ROOT = Path(__file__).parents[3]
PAGE = "docs/spark-source.md"
READ = """
import json, sys
from tests.bench.spark_source import session_in
scratch, jars, bootstrap, topic, offsets = sys.argv[1:]
source = session_in(scratch, {"spark.jars": jars}).read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
rows = source.option("subscribe", topic).option("startingOffsets", offsets).load().select("value").collect()
print(json.dumps([int(row.value) for row in rows]))
"""


STREAM = """
import sys
from tests.bench.spark_source import session_in
scratch, jars, bootstrap, topic = sys.argv[1:]
source = session_in(scratch, {"spark.jars": jars}).readStream.format("kafka").option("startingOffsets", "earliest")
rows = source.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
written = rows.writeStream.format("noop").option("checkpointLocation", "checkpoint").trigger(availableNow=True)
written.start().awaitTermination()
"""


async def run(folder: Path, *words: str, **variables: str) -> str:
    """What the program printed."""
    environment = java_environment(os.environ) | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)} | variables
    done = await asyncio.to_thread(
        subprocess.run, words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@only_nightly
@pytest.mark.timeout(300)
async def test_spark_continues_at_the_next_record(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Together they have every record once; from the beginning (the control) Spark has all of them."""
    await fill(cluster, unique, 30, 3)
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        first = [int(message.value or b"") for message in await take(streams[unique][0], 17)]
        streams[unique][0].ack()
    exported = await CommandLine(capsys, "--zookeeper", cluster.connect)(
        "offsets", "export", unique, "--format", "spark"
    )
    assert exported.status == 0, exported
    assert sum(json.loads(exported.out)[unique].values()) == 17
    jars = ",".join(sorted(map(str, fetched(JARS).glob("*.jar"))))

    async def spark(offsets: str) -> list[int]:
        words = [sys.executable, "-c", READ, str(tmp_path), jars, cluster.bootstrap, unique, offsets]
        return [int(each) for each in json.loads((await run(tmp_path, *words)).splitlines()[-1])]

    assert sorted([*first, *await spark(exported.out)]) == list(range(30))
    assert sorted(await spark("earliest")) == list(range(30))


@only_nightly
@pytest.mark.timeout(300)
async def test_a_group_continues_at_the_next_record(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """The commands of docs/spark-source.md, beside a checkpoint of Spark's own source that has read all there was."""
    await fill(cluster, unique, 20, 2)
    jars = ",".join(sorted(map(str, fetched(JARS).glob("*.jar"))))
    await run(tmp_path, sys.executable, "-c", STREAM, str(tmp_path / "scratch"), jars, cluster.bootstrap, unique)
    later = [Sent(n % 2, None, b"%d" % n) for n in range(20, 30)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, later)
    (commands,) = re.findall(r"^```sh\n(cd .*?)^```$", (ROOT / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    script = commands.replace("cd lake", f"cd {tmp_path}").replace("--group lake", f"--group {unique}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    connect = {"KZCONSUMER__ZOOKEEPER__CONNECT": cluster.connect}
    printed = await run(tmp_path, "bash", "-euc", script, PATH=path, **connect)
    async with member(cluster, unique, {unique: 1}) as (_, streams):
        taken = [int(message.value or b"") for message in await take(streams[unique][0], 10)]
    assert sorted(taken) == list(range(20, 30)), printed
