"""Reads the Parquet files back with a Spark of its own and counts: `python -m kzconsumer.demo.count PATH MESSAGES`.

Owns its Spark session. A process of its own, since the demo's must not wait for a JVM; prints one JSON object. It knows
nothing of how the files came to be.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import msgspec


class Counted(msgspec.Struct, frozen=True):
    """`rows` in the files, `distinct` messages of the producer among them, `elsewhere` those at several offsets."""

    rows: int
    distinct: int
    elsewhere: int


def main() -> None:
    path, messages = sys.argv[1], int(sys.argv[2])
    # By name: the plugin, which the demo needs, knows Spark's Java, and this distribution never imports it.
    os.environ.update(import_module("kzconsumer_spark.daemon.worker_process").java_environment(os.environ))
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
