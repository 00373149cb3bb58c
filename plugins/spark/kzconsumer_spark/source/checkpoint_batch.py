"""A batch of the checkpoint, which may have been planned long ago: where the logs of its partitions begin now.

It is delivered as it was planned, or not yet: a sink that has it already skips it by its number, so the partitions
without a leader cannot follow in another batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from typing import Final

from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer_spark.executors.access import BrokerAccess
from kzconsumer_spark.executors.fetching import BrokersOutageError, log_starts
from kzconsumer_spark.worker.kafka_registry import KafkaRegistry, PlannedTopics

_PAUSE_SECONDS: Final = 1.0
_log = get_logger("kzconsumer.spark")


def of_checkpoint(
    ranges: Collection[RangeIdentity], registry: KafkaRegistry
) -> tuple[PlannedTopics, Mapping[TopicPartition, int]]:
    """What the cluster has of the topics, and the first offsets of the logs of those that are there.

    Waits for the leaders of the partitions. Raises as `KafkaRegistry`, and as `log_starts` for errors that last.
    """
    parent = os.getppid()
    while True:
        topics = registry.planned(ranges)
        there = {part.topic_partition for part in ranges if (part.topic, part.incarnation) not in topics.gone}
        try:
            return topics, log_starts(there, BrokerAccess(registry.kafka, topics.brokers, topics.ids))
        except BrokersOutageError as error:
            reason = f"{error}; if the topic was deleted for good, use another checkpoint"
            _log.warning("batch of the checkpoint waits for leaders", reason=reason, again=True)
        if os.getppid() != parent:
            raise SystemExit("Spark's driver has ended")
        time.sleep(_PAUSE_SECONDS)
