"""A Spark that does what workers do, and ends: `quick_spark` has its Java record which classes that needs.

Its argument is a directory of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kzconsumer.model import Broker
from kzconsumer.settings.settings import Settings
from kzconsumer_files.range_names import TargetOwner
from kzconsumer_spark.daemon.marked_destination import destination_for
from kzconsumer_spark.executors.planned_topics import KafkaRegistry
from kzconsumer_spark.ranges.batch import SparkBatch
from kzconsumer_spark.worker.query import RangeQuery, warm_up
from kzconsumer_spark.worker.range_writers import FilesDestination
from kzconsumer_spark.worker.spark_errors import Tracebacks
from kzconsumer_spark.worker.worker_main import query_directory
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from kzconsumer_spark.worker_protocol.messages import ToFiles
from tests.support.placed_records import PERMITTED, placed_frame
from tests.support.range_data import range_data
from tests.support.spark_session import into_parquet, spark_session

KAFKA = Kafka.of(Settings.from_dict({"zookeeper": {"connect": "127.0.0.1:1"}, "group": {"id": "g"}}))


class NoBrokers(KafkaRegistry):
    def brokers(self) -> tuple[Broker, ...]:
        return ()


def train(scratch: Path) -> None:
    """The work of a worker until it is ready, and one batch."""
    start = into_parquet(scratch, str(scratch / "out"))
    owner = TargetOwner(cluster="c", group="g")
    with spark_session(scratch) as session:
        query = RangeQuery(session, query_directory(start), 0, Tracebacks(), NoBrokers(KAFKA))
        warm_up(query)
        query.stop()
        assert isinstance(start.destination, ToFiles)
        destination_for(start.destination).mark(owner)
        files = FilesDestination(session, start.destination, PERMITTED)
        files.write(SparkBatch(1, *placed_frame(session, scratch / "records", range_data("t", 0, 0, 100))))
        files.close()
        session.read.json(session.sparkContext.parallelize(['{"a": 1}'])).where("a = 1").collect()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
