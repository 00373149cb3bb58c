"""The worker's lease: held, waited for, or lost."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import cast

import pytest
from pyspark.sql import DataFrame

from kzconsumer import clock
from kzconsumer.model import TopicPartition
from kzconsumer.records.checksums import Contents
from kzconsumer_spark.executors.fetching import NotWholeError
from kzconsumer_spark.executors.planned_topics import KafkaRegistry
from kzconsumer_spark.ranges.batch import LeaseLost, PartsRead, SparkBatch, WorkerLease
from kzconsumer_spark.worker.query import TopicsLease


def test_a_lease_that_holds_does_not_wait() -> None:
    WorkerLease(clock.now() + 60, patience=0).require()


def test_a_lease_that_ran_out_is_lost_after_the_patience() -> None:
    with pytest.raises(LeaseLost):
        WorkerLease(clock.now() - 1, patience=0.05).require()


def test_a_lease_that_must_hold_now_is_not_waited_for() -> None:
    """Nor is anything asked of ZooKeeper."""

    class Silent(_Registry):
        def require_planned(self, ranges: object) -> None:
            raise AssertionError

    lease = WorkerLease(clock.now() + 600, patience=600)
    permission = TopicsLease(lease, Silent(), lambda _: None)
    permission.require_now()
    lease.renew(clock.now() - 1)
    with pytest.raises(LeaseLost):
        permission.require_now()


def test_a_renewal_lets_a_waiting_batch_continue() -> None:
    lease = WorkerLease(-math.inf, patience=60)
    renewal = threading.Timer(0.05, lease.renew, [clock.now() + 60])
    renewal.start()
    lease.require()
    renewal.join()


class _Registry(KafkaRegistry):
    """Has the topics that were planned."""

    def __init__(self) -> None:
        """Without a server."""

    def require_planned(self, ranges: object) -> None:
        return None


def test_what_executors_have_read_is_recorded_once_and_before_it_may_be_published() -> None:
    """A function may have read a part only; then it is not known yet."""
    read: list[Mapping[TopicPartition, PartsRead]] = []
    recorded: list[Mapping[TopicPartition, Contents]] = []
    errors: list[Exception] = []

    def read_by_now() -> Mapping[TopicPartition, PartsRead]:
        if not read:
            raise NotWholeError("a part is missing")
        return read[0]

    def record(found: Mapping[TopicPartition, Contents]) -> None:
        for error in errors:
            raise error
        recorded.append(found)

    def begun() -> TopicsLease:
        lease = TopicsLease(WorkerLease(math.inf), _Registry(), record)
        lease.begin(SparkBatch(1, cast("DataFrame", None), (), read=read_by_now))
        return lease

    lease = begun()
    lease.require()
    lease.report_read()
    with pytest.raises(NotWholeError, match="a part is missing"):
        lease.require_whole()
    assert recorded == []
    read.append({TopicPartition("t", 0): PartsRead(Contents(3), rejected=1)})
    errors.append(OSError("not stored"))
    for call in (lease.require_whole, lease.report_read):
        with pytest.raises(OSError, match="not stored"):
            call()
    errors.clear()
    lease.report_read()
    lease.require_whole()
    assert recorded == [{TopicPartition("t", 0): Contents(3)}]
    begun().require_whole()
    assert recorded == [{TopicPartition("t", 0): Contents(3)}] * 2
    late = TopicsLease(WorkerLease(-math.inf, patience=0), _Registry(), record)
    late.begin(SparkBatch(1, cast("DataFrame", None), (), read=read_by_now))
    with pytest.raises(LeaseLost):
        late.require_whole()
