"""A program that runs a streaming query of `GroupSource` into a table, and starts it again whenever it fails.

`python -m tests.support.token_query --config FILE`: a group's file. The environment says where Spark's master is
(`MASTER`), which function of `token_tables` takes the batches (`INTO`) and where its table is (`TABLE`).
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from tests.support.source_query import source, start
from tests.support.spark_session import spark_session
from tests.support.token_tables import function

MASTER: Final = "KZCONSUMER_TEST_MASTER"
INTO: Final = "KZCONSUMER_TEST_INTO"
TABLE: Final = "KZCONSUMER_TEST_TABLE"
HOLD, HELD = "hold", "held"
"""Files beside the group's: while the first is there, a batch that has begun makes the second and waits."""

_SMALL: Final = {"spark.cores.max": "1", "spark.executor.memory": "512m", "spark.driver.memory": "512m"}


def main() -> None:
    os.setsid()  # a test kills all of its processes
    config = Path(sys.argv[2])
    folder = config.parent
    store = function(os.environ[INTO], os.environ[TABLE])

    def slowly(frame: DataFrame, number: int) -> None:
        while (folder / HOLD).exists():
            (folder / HELD).touch()
            time.sleep(0.1)
        time.sleep(random.uniform(0, 0.5))
        store(frame, number)
        time.sleep(random.uniform(0, 0.5))

    with spark_session(folder / "scratch", _SMALL, os.environ[MASTER]) as session:
        frame = source(session, "", "", config=str(config)).select(
            "topic", "partition", "offset", sql.col("value").cast("string")
        )
        while True:
            try:
                start(frame, folder, slowly).awaitTermination()
            except StreamingQueryException as error:
                print(error, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
