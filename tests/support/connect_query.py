"""Queries of `GroupSource` by Spark Connect: `python -m tests.support.connect_query FOLDER ZOOKEEPER NAME`.

The client runs a server of its own. What the group NAME has not read of the topic NAME goes into FOLDER, by batch. Then
all records are read once more, without the group, and their values are printed, one a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from kzconsumer_spark import GroupSource, PromptCommits
from tests.support.source_query import LIMIT


def main() -> None:
    folder, connect, name = sys.argv[1:]
    options = {"zookeeper.connect": connect, "group.id": name, "topics": name}
    session = SparkSession.builder.remote("local[2]").getOrCreate()
    assert "connect" in type(session).__module__
    session.dataSource.register(GroupSource)
    session.streams.addListener(PromptCommits())

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.selectExpr("partition", "CAST(value AS STRING) AS value").collect()
        Path(folder, str(number)).write_text("".join(f"{row['partition']} {row['value']}\n" for row in rows))

    query = (
        session.readStream.format("kzconsumer")
        .options(maxRecordsPerBatch="300", **options)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{folder}.checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(LIMIT), query.status
    whole = session.read.format("kzconsumer").options(**options).option("startingOffsets", "earliest").load()
    for row in whole.selectExpr("CAST(value AS STRING) AS value").collect():
        print(row["value"])
    session.stop()


if __name__ == "__main__":
    main()
