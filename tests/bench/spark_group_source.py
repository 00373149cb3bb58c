"""`GroupSource` into Parquet, as a program of users: `python -m tests.bench.spark_group_source SCRATCH CONFIG OUT`.

One streaming query of a Spark session with the settings of Spark's own source (`spark_source`), until standard input
ends; a line is returned when it has started. Its checkpoint is beside OUT. Started by `tests.bench.spark_sides`.
"""

from __future__ import annotations

import sys

from kzconsumer_spark import GroupSource
from kzconsumer_spark.worker.spark_session import take_pipes
from tests.bench.spark_source import answer, session_in


def main() -> None:
    scratch, config, out = sys.argv[1:]
    commands, answers = take_pipes()
    session = session_in(scratch, {})
    session.dataSource.register(GroupSource)
    query = (
        session.readStream.format("kzconsumer")
        .option("config", config)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{out}.checkpoint")
        .start(out)
    )
    answer(answers)
    commands.read()
    query.stop()
    session.stop()


if __name__ == "__main__":
    main()
