"""Lag in offsets and seconds, of partitions and of a group."""

from __future__ import annotations

from kzconsumer.model import Broker, TopicPartition
from kzconsumer_tools.groups.lag import GroupLag, LogRange, group_lag, partitions_of
from kzconsumer_tools.groups.nodes import facts
from tests.tools.plain.test_group_description import group, node

NOW = 1_700_000_000_000


def lag_of(stored: dict[int, int], written: dict[int, int]) -> GroupLag:
    """Of partitions whose logs hold the offsets 5 to 9. `written`: ms between now and the next record's timestamp."""
    known = facts(group({}, {}, {f"orders/{number}": node(str(offset)) for number, offset in stored.items()}))
    logs = {TopicPartition("orders", number): LogRange(5, 10) for number in stored}
    times = {TopicPartition("orders", number): NOW - age for number, age in written.items()}
    return group_lag("g", known, partitions_of(known), logs, times, NOW)


def test_the_lag_in_seconds_of_a_group_is_that_of_its_latest_partition() -> None:
    found = lag_of({0: 7, 1: 5, 2: 10}, {0: 2_500, 1: 40_000})
    assert [(each.lag, each.seconds) for each in found.partitions] == [(3, 2.5), (5, 40.0), (0, 0.0)]
    assert (found.lag, found.seconds, found.unknown) == (8, 40.0, 0)


def test_a_timestamp_in_the_future_gives_no_negative_lag() -> None:
    """The producer's clock is ahead."""
    found = lag_of({0: 7}, {0: -3_000})
    assert (found.partitions[0].seconds, found.seconds) == (0.0, 0.0)


def test_an_offset_after_the_log_end_and_an_unknown_time_give_unknown_lags() -> None:
    found = lag_of({0: 11, 1: 7}, {})
    assert [(each.lag, each.seconds) for each in found.partitions] == [(None, None), (3, None)]
    assert (found.lag, found.seconds, found.unknown) == (3, None, 1)


def test_the_leader_and_the_owners_host() -> None:
    """The host is part of the consumer ids that both consumers make, and unknown with one of the application."""
    ids = ("g_a-b-1795282558531-b173380f", "g_fixed", "g_h_1-1795282558531-0000000f")
    owners = {f"orders/{number}": node(f"{consumer}-0") for number, consumer in enumerate(ids)}
    known = facts(group({}, owners, {f"orders/{number}": node("7") for number in range(4)}))
    leaders = {TopicPartition("orders", 0): Broker(3, "::1", 9092)}
    found = group_lag("g", known, partitions_of(known), {}, {}, NOW, leaders).partitions
    assert [each.host for each in found] == ["a-b", None, "h_1", None]
    assert [(each.leader, each.leader_address) for each in found] == [(3, "[::1]:9092"), *[(None, None)] * 3]
