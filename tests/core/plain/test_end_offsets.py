"""Where a member with end offsets stops: at its own, or at those of the group's run."""

from __future__ import annotations

import pytest

from kzconsumer.end_offsets import EndOffsets
from kzconsumer.model import TopicPartition
from kzconsumer.registry.group_records import GroupRun, TopicEnds, decode_group_run, encode_group_run

ORDERS = TopicPartition("orders", 0)
RUN = GroupRun(
    id="2026-01-31",
    stop_at=-1,
    began=1_769_860_800_000,
    subscriptions=('["static","orders"]',),
    topics={"orders": TopicEnds("0x2a", {0: 105, 1: 0}), "empty": TopicEnds("0x2b", {})},
)


async def test_end_offsets_of_a_member_end_only_those_partitions() -> None:
    end_offsets = EndOffsets({ORDERS: 105})
    assert end_offsets.known.is_set()
    assert not end_offsets.of_the_group
    assert (end_offsets.of(ORDERS, 1), end_offsets.of(TopicPartition("orders", 1), 1)) == (105, None)
    assert not end_offsets.leaves_out(TopicPartition("orders", 1), 1)
    assert [end_offsets.passed(ORDERS, 1, at) for at in (104, 105)] == [False, True]
    assert not end_offsets.passed(TopicPartition("orders", 1), 1, 1 << 40), "it has no end"


async def test_records_after_the_end_of_the_run_are_left_out() -> None:
    end_offsets = EndOffsets()
    assert not end_offsets.known.is_set()
    end_offsets.begin(RUN)
    assert end_offsets.known.is_set()
    assert end_offsets.of(ORDERS, 0x2A) == 105
    assert end_offsets.passed(TopicPartition("orders", 1), 0x2A, 0), "an empty partition is at its end at once"
    assert end_offsets.leaves_out(TopicPartition("orders", 2), 0x2A), "a partition added"
    assert end_offsets.leaves_out(ORDERS, 0x2C), "a topic that was recreated"
    assert end_offsets.leaves_out(TopicPartition("payments", 0), 0x2A), "a topic made later"
    assert not end_offsets.passed(ORDERS, 0x2C, 105)


def test_the_run_record_round_trips() -> None:
    assert decode_group_run(encode_group_run(RUN)) == RUN
    assert RUN.ends == {ORDERS: 105, TopicPartition("orders", 1): 0}


@pytest.mark.parametrize("data", [b"", b"{}", encode_group_run(RUN).replace(b'"version":1', b'"version":2')])
def test_a_run_record_of_another_version_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a group's run"):
        decode_group_run(data)
