"""What a task names to the member, through Spark's tracebacks: records that Spark cannot hold, corrupt batches."""

from __future__ import annotations

import traceback

import pytest

from kzconsumer.errors import BrokersUnreachableError
from kzconsumer.model import OffsetRange
from kzconsumer_spark.executors.fetching import MOST_NAMED, BrokersOutageError, CorruptPartError, NotStorableError
from kzconsumer_spark.worker.query import failure
from kzconsumer_spark.worker_protocol.messages import RunBatch

PART = OffsetRange("orders.v1", 3, 1 << 40, (1 << 40) + 100_000)
BATCH = RunBatch(number=1, ranges=())


def wrapped(error: Exception) -> Exception:
    """As Spark has it: the task's traceback is the text of an exception of its own."""
    try:
        raise error
    except Exception:
        said = traceback.format_exc()
    return RuntimeError(f"Job aborted: org.apache.spark.api.python.PythonException: {said}\n\tat org.apache.spark.Foo")


@pytest.mark.parametrize("offsets", [[0], [5, 6, 7, 99_999], list(range(0, 2 * MOST_NAMED, 2))])
def test_the_member_gets_the_records_that_a_task_names(offsets: list[int]) -> None:
    failed = failure(BATCH, wrapped(NotStorableError(PART, [PART.first + n for n in offsets])))
    assert [each.offset - PART.first for each in failed.rejected] == offsets
    assert {(each.topic, each.partition, each.error_class) for each in failed.rejected} == {
        ("orders.v1", 3, "unstorable")
    }
    assert not failed.outage


def test_a_task_names_a_limited_number() -> None:
    every_other = [PART.first + n for n in range(0, 4 * MOST_NAMED, 2)]
    assert len(failure(BATCH, wrapped(NotStorableError(PART, every_other))).rejected) == MOST_NAMED


def test_the_member_gets_the_batch_that_a_task_cannot_use() -> None:
    failed = failure(BATCH, wrapped(CorruptPartError(PART)))
    assert (failed.corrupt, failed.outage, failed.rejected) == (PART, False, ())


def test_an_outage_rejects_nothing() -> None:
    failed = failure(BATCH, wrapped(BrokersOutageError("broker 1 does not answer")))
    assert (failed.rejected, failed.outage) == ((), True)


def test_a_driver_that_asks_brokers_for_topics_waits_for_them_as_a_task_does() -> None:
    """In KRaft mode, where brokers say whether the topics are still those of the plans."""
    failed = failure(BATCH, BrokersUnreachableError("127.0.0.1:9092: connection refused"))
    assert (failed.outage, failed.error) == (True, "127.0.0.1:9092: connection refused")
