"""Corrupt batches in the parts that tasks fetch: who decides, and what is fetched once that is decided."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.errors import CorruptRecordError
from kzconsumer.fetcher import range_reader
from kzconsumer.model import Broker, OffsetRange
from kzconsumer.registry.claim_record import Spans, spans_of
from kzconsumer.settings.sections import RejectedSettings
from kzconsumer.settings.settings import Settings
from kzconsumer_spark.daemon.sink import CorruptBatches
from kzconsumer_spark.executors.broker_access import BrokerAccess
from kzconsumer_spark.executors.fetching import CorruptPartError, TaskPolicy, corrupt_in, fetched
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.core.plain.test_range_reader import Led, with_damage
from tests.support.log_broker import log_broker

WHOLE = OffsetRange("orders", 0, 0, 25)


def settings(on_corrupt: str) -> Settings:
    tables = {"zookeeper": {"connect": "h:1"}, "group": {"id": "g"}}
    return Settings.from_dict(tables | {"fetch": {"on_corrupt": on_corrupt}})


def led_by(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaders(*_: object) -> Leaders:
        return Led(broker)

    monkeypatch.setattr(range_reader, "Leaders", leaders)
    monkeypatch.setattr(range_reader, "PAUSE", 0.01)


async def test_a_task_of_the_sink_names_the_batch_and_one_of_the_source_passes_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with log_broker(with_damage, end=lambda partition: 25) as broker:
        led_by(broker, monkeypatch)

        def read(on_corrupt: str, policy: TaskPolicy | None) -> list[object]:
            access = BrokerAccess(Kafka.of(settings(on_corrupt)), [broker])
            return [n for batch in fetched([WHOLE], access, policy=policy) for n in batch["offset"].to_pylist()]

        source = TaskPolicy(rejected=RejectedSettings(), group="g")
        with pytest.raises(CorruptPartError) as raised:
            await asyncio.to_thread(read, "skip", None)
        assert corrupt_in(str(raised.value)) == WHOLE._replace(first=5)
        for policy in (None, source):
            with pytest.raises(CorruptRecordError, match="corrupt batch in orders-0 at offset 5"):
                await asyncio.to_thread(read, "fail", policy)
        with capture_logs():
            assert await asyncio.to_thread(read, "skip", source) == [*range(5), *range(15, 20)]


def offsets(*spans: tuple[int, int]) -> set[int]:
    return {offset for first, until in spans for offset in range(first, until)}


def planned(first: int, until: int, *spans: tuple[int, int], left_out: Spans = ()) -> BatchRange:
    return BatchRange(
        topic="orders",
        partition=0,
        first=first,
        until=until,
        incarnation=1,
        epoch=0,
        records=len(offsets(*spans) - offsets(*left_out)),
        spans=tuple(WHOLE._replace(first=begin, until=end) for begin, end in spans),
        left_out=left_out,
    )


def test_what_is_passed_over_is_not_fetched() -> None:
    corrupt = CorruptBatches(settings("skip"))
    for first, until in ((5, 10), (20, 25), (40, 60)):
        corrupt.pass_over(WHOLE._replace(first=first, until=until))
    assert corrupt.without(planned(0, 5, (0, 5))) == planned(0, 5, (0, 5))
    assert corrupt.without(planned(0, 30, (0, 30))) == planned(0, 30, (0, 5), (10, 20), (25, 30))
    assert corrupt.without(planned(3, 22, (3, 7), (8, 22))) == planned(3, 22, (3, 5), (10, 20))
    assert corrupt.without(planned(42, 60, (42, 60))) == planned(42, 60)
    corrupt.begin([WHOLE._replace(partition=1), WHOLE._replace(first=24, until=30)])
    assert corrupt.without(planned(0, 30, (0, 30))) == planned(0, 30, (0, 20), (25, 30)), "of the ranges in hand only"


SOME = st.frozensets(st.integers(0, 11))


@given(SOME, SOME, SOME)
def test_a_range_is_fetched_if_it_has_records_that_are_neither_rejected_nor_passed_over(
    there: frozenset[int], bad: frozenset[int], passed: frozenset[int]
) -> None:
    """A destination has nothing read of a range without records, and tasks have to account for what is to be fetched.
    Records that were rejected may be in a batch that is corrupt later."""
    corrupt = CorruptBatches(settings("skip"))
    for first, until in spans_of(passed):
        corrupt.pass_over(WHOLE._replace(first=first, until=until))
    part = corrupt.without(planned(0, 12, *spans_of(there), left_out=spans_of(bad & there)))
    fetched, left_out = offsets(*((each.first, each.until) for each in part.spans)), offsets(*part.left_out)
    assert part.records == len(there - bad - passed)
    assert fetched == (there - passed if part.records else set())
    assert left_out == (there & bad) - passed
