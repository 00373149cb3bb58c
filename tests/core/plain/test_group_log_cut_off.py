"""A simulated group and logs that are cut off by an unclean election, and have grown past the position again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kzconsumer.brokers.protocol.versions import METADATA, OFFSET_FOR_LEADER_EPOCH
from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import decode_claim_record
from kzconsumer.zookeeper.operations import SetData
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.kafka_frames import OFFSET_NOT_AVAILABLE

EVENT = "log truncated below the consumed offset"
REFUSED = "partition refused by its leader, retrying"


def lines(group: SimulatedGroup) -> list[Mapping[str, Any]]:
    return [each for each in group.events if each["event"] == EVENT]


@pytest.mark.parametrize("grown", [0, 5, 40])
@pytest.mark.parametrize("gap", [0.0, 2.0])
def test_records_that_replaced_others_are_read(grown: int, gap: float) -> None:
    """While a member has the partition: the log that it reads on in is not the one that it has read."""
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 1)
        group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(10)
        (partition,) = group.logs.partitions
        end = group.logs.end(partition)
        group.broker_faults.elect_uncleanly(partition, 20, grown, gap)
        group.come_to_rest(60, 5)
        (line,) = lines(group)
        assert (line["first"], line["replaced"], line["leader_epoch"]) == (end - 20, 20, 0)


def test_records_of_the_former_log_that_are_fetched_are_handed_out_and_those_of_the_new_one_too() -> None:
    """What a member gets at once may begin before the place where its log was cut off meanwhile."""
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 1)
        group.join("a", {"t": 1}, 1.0, in_batches=True)
        group.world.pass_time(10)
        (partition,) = group.logs.partitions
        for _ in range(2):
            group.logs.burst(15)
        group.world.pass_time(0.2)
        begin = group.logs.end(partition) - 15
        group.broker_faults.elect_uncleanly(partition, 15, 40, 0.0)
        group.world.pass_time(2.0)  # they are processed, and the new ones are not read
        assert group.promises.unfinished(partition, begin + 15).startswith(f"t-0 is not read at [{begin}, ")
        group.come_to_rest(60, 5)
        (line,) = lines(group)
        assert (line["first"], line["replaced"]) == (begin, 15)


@pytest.mark.parametrize("unlisted", [0.0, 25.0])
def test_an_election_that_the_same_broker_wins(unlisted: float) -> None:
    """The connection stays open, so the member learns of the cut only from the epoch in its next fetch.

    The broker may need long until it can say where its log ends.
    """
    with simulated_group(1) as group:
        group.logs.grow("t", 1)
        group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(10)
        (partition,) = group.logs.partitions
        group.broker_faults.elect_uncleanly(partition, 20, 40, 0.0)
        if unlisted:
            group.broker_faults.list_nothing(0, OFFSET_NOT_AVAILABLE, unlisted)
            group.world.pass_time(unlisted)
        group.come_to_rest(60, 5)
        assert [line["replaced"] for line in lines(group)] == [20]
        waited = [each["reason"] for each in group.events if each["event"] == REFUSED]
        assert waited == ["OFFSET_NOT_AVAILABLE"] * bool(unlisted)


def test_a_partition_that_comes_while_another_log_is_compared() -> None:
    """It is not fetched before its own is: the position that this reaches would be one of the other log."""
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 2)
        for partition in group.logs.partitions:
            group.logs.lead(partition, 0)
        group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(10)
        for number in range(2):  # so that the second partition's pause is over when the first one is found
            group.broker_faults.slow_down(number, METADATA, 0.5, 10.0)
        group.broker_faults.slow_down(1, OFFSET_FOR_LEADER_EPOCH, 2.0, 10.0)
        for partition in group.logs.partitions:
            group.broker_faults.elect_uncleanly(partition, 20, 40, 0.0)
            group.world.pass_time(0.3)
        group.come_to_rest(60, 5)
        assert {line["partition"]: line["replaced"] for line in lines(group)} == {0: 20, 1: 20}


@pytest.mark.parametrize("grown", [0, 5, 40])
def test_a_stored_offset_knows_its_log(grown: int) -> None:
    """Between two runs: nobody has seen the election."""
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 2)
        first = group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(10)
        cut, whole = group.logs.partitions
        group.leave(first)
        group.world.pass_time(5)
        record = group.ensemble.tree.nodes[group.promises.paths.claim_record(cut)]
        assert decode_claim_record(record.data).leader_epoch_before(int(record_offset(group, cut))) == 0
        group.broker_faults.elect_uncleanly(cut, 32, grown, 0.0)
        group.broker_faults.move_leader(whole, 0.0)
        group.world.pass_time(1)
        group.join("b", {"t": 1}, 0.0, in_batches=False)
        group.come_to_rest(60, 5)
        assert [line["partition"] for line in lines(group)] == [cut.partition]


@pytest.mark.parametrize("lost", [0, 80])
def test_zookeeper_is_restored_from_an_older_copy(lost: int) -> None:
    """The offset is that of the copy, and so is its epoch: records come again, and none is skipped."""
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 1)
        (partition,) = group.logs.partitions
        nodes = [group.promises.paths.offset(partition), group.promises.paths.claim_record(partition)]
        first = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(10)
        copy = {path: group.ensemble.tree.nodes[path].data for path in nodes}
        group.broker_faults.move_leader(partition, 0.0)
        group.world.pass_time(10)
        group.leave(first)
        group.world.pass_time(5)
        for path, data in copy.items():
            group.ensemble.operate(SetData(path, data, -1))
        stored = int(copy[nodes[0]])
        if lost:
            group.broker_faults.elect_uncleanly(partition, lost, 80, 0.0)
        end = group.logs.end(partition)
        group.join("b", {"t": 1}, 0.0, in_batches=False)
        group.come_to_rest(60, 5)
        assert [line["until"] for line in lines(group)] == ([stored] if lost else [])
        assert set(range(stored, end)) <= group.promises.finished[partition]


def test_former_records_that_are_acknowledged_once_more() -> None:
    """That does not count for the records that have replaced them, and a release does not wait for them."""
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.3, in_batches=False, explicit=True)
        group.world.pass_time(10)
        for _ in range(10):
            for partition in group.logs.partitions:
                group.broker_faults.elect_uncleanly(partition, 3, 0, 0.0)
            group.world.pass_time(2)
            group.check()
        group.logs.burst(60)
        group.world.pass_time(0.5)
        group.join("0", {"t": 1}, 0.3, in_batches=False)
        group.world.pass_time(10)
        group.leave(member)
        group.come_to_rest(60, 5)


def record_offset(group: SimulatedGroup, partition: TopicPartition) -> bytes:
    return group.ensemble.tree.nodes[group.promises.paths.offset(partition)].data
