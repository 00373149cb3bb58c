"""Counts the records of the Parquet files with Spark, in a process of its own that prints one JSON object."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import msgspec
from anyio import to_thread

from kzconsumer_sandbox.errors import DemoFailed, SandboxError
from kzconsumer_sandbox.servers.server_process import ServerProcess


class Counted(msgspec.Struct, frozen=True):
    """`rows` in the files, `distinct` messages in them, `elsewhere`: messages at more than one offset."""

    rows: int
    distinct: int
    elsewhere: int


def main() -> None:
    path, messages = sys.argv[1], int(sys.argv[2])
    # By name: this distribution does not depend on kzconsumer-spark, which the demo needs.
    os.environ.update(import_module("kzconsumer_spark.daemon.worker_process").java_environment(os.environ))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark looks up the machine's name
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    session = (
        SparkSession.builder.master("local[2]")
        .appName("kzconsumer demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", os.getcwd())
        .config("spark.driver.extraJavaOptions", f'-Djava.io.tmpdir="{os.getcwd()}" -XX:-UsePerfData')
        .getOrCreate()
    )
    records = session.read.parquet(path)
    number = f.get_json_object(records["value"].cast("string"), "$.id").cast("long")
    found = records.select(f.when((number >= 0) & (number < messages), number).alias("id"), "partition", "offset")
    places = [edge(column) for column in ("partition", "offset") for edge in (f.min, f.max)]
    messages_found = found.groupBy("id").agg(
        f.count("*").alias("rows"),
        (places[0].eqNullSafe(places[1]) & places[2].eqNullSafe(places[3])).alias("in_one_place"),
    )
    row = messages_found.agg(
        f.sum("rows").alias("rows"),
        f.count("id").alias("distinct"),
        f.count(f.when(f.col("id").isNotNull() & ~f.col("in_one_place"), 1)).alias("elsewhere"),
    ).first()
    assert row is not None
    counted = Counted(rows=row["rows"] or 0, distinct=row["distinct"], elsewhere=row["elsewhere"])
    session.stop()
    print(msgspec.json.encode(counted).decode(), flush=True)


if __name__ == "__main__":
    main()

_LIMIT = 300.0


async def count(path: Path, messages: int, folder: Path) -> Counted:
    """Count the Parquet files under `path`; `folder` is for the log and Spark's scratch files. Raises DemoFailed."""
    process = _Counting(path, messages, folder)
    process.start()
    try:
        await to_thread.run_sync(process.wait_ended, _LIMIT, abandon_on_cancel=True)
    except SandboxError as error:
        raise DemoFailed(f"Spark could not count: {error}") from None
    finally:
        process.kill()
    for line in reversed(process.last_lines().splitlines()):
        try:
            return msgspec.json.decode(line, type=Counted)
        except msgspec.MsgspecError:
            continue
    raise DemoFailed(f"Spark could not count the records; see {process.log}")


class _Counting(ServerProcess):
    def __init__(self, path: Path, messages: int, folder: Path) -> None:
        super().__init__("counting", folder)
        self._arguments = [str(path), str(messages)]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "kzconsumer_sandbox.demo.count", *self._arguments]
