"""A Spark that does what workers do, and ends: `quick_spark` has its Java record which classes that needs.

Its argument is a directory of its own.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from kzconsumer_files.names import TargetOwner
from kzconsumer_spark.daemon.marked_destination import claimed_destination
from kzconsumer_spark.daemon.spool import SpoolPlace, write_spool
from kzconsumer_spark.pipe.messages import RunBatch, ToFiles
from kzconsumer_spark.ranges.batch import WorkerLease
from kzconsumer_spark.worker.query import RangeQuery, warm_up
from kzconsumer_spark.worker.range_writers import FilesDestination
from kzconsumer_spark.worker.spark_session import Tracebacks
from kzconsumer_spark.worker.worker_main import _query_directory
from tests.support.range_data import range_data
from tests.support.spark_session import into_parquet, spark_session


def train(scratch: Path) -> None:
    """The work of a worker until it is ready, and one batch."""
    start = into_parquet(scratch, str(scratch / "out"))
    owner = TargetOwner(cluster="c", group="g")
    with spark_session(scratch) as session:
        query = RangeQuery(session, _query_directory(start), 0, Tracebacks())
        warm_up(start, session, query)
        assert isinstance(start.destination, ToFiles)
        claimed_destination(start.destination).claim(owner)
        spool = scratch / "spool"
        spool.mkdir()
        files = FilesDestination(session, start.destination, WorkerLease(math.inf))
        ranges = write_spool(SpoolPlace.in_directory(spool), [range_data("t", 0, 0, 100)])
        query.run(RunBatch(number=1, ranges=ranges), files.write)
        query.stop()
        files.close()
        session.read.json(session.sparkContext.parallelize(['{"a": 1}'])).where("a = 1").collect()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
