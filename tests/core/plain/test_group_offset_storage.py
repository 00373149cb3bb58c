"""A simulated group whose offsets are with the brokers, alone or as a copy: it keeps the promises that others keep."""

from __future__ import annotations

from typing import Literal

import pytest

from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import ClaimRecord, encode_claim_record
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.kafka_frames import Kept
from tests.support.simulated.lost_replies import SYSTEM_ERROR, Loss
from tests.support.simulated.scene import SESSION_TIMEOUT, Scene

Storage = Literal["kafka", "both"]
STORAGES = pytest.mark.parametrize("storage", ["kafka", "both"])


def require_stored(group: SimulatedGroup, storage: Storage) -> None:
    """The coordinator has the end of each log, with the leader epoch of the last record."""
    logs = group.logs.logs
    assert group.coordinator.stored == {
        partition: Kept(log.end, log.last_epoch, "kzconsumer epoch 0") for partition, log in logs.items()
    }
    for partition, log in logs.items():
        there = group.ensemble.tree.data(group.paths.offset(partition))
        assert there == (b"%d" % log.end if storage == "both" else None)


@STORAGES
@pytest.mark.parametrize("seed", range(3))
def test_members_come_and_go(storage: Storage, seed: int) -> None:
    """And seek, and die; each begins where the one before it has stored."""
    with simulated_group(seed, Scene(brokers=2, storage=storage)) as group:
        group.logs.grow("t", 4)
        first = group.join("a", {"t": 1}, 0.005, in_batches=False)
        group.world.pass_time(5)
        group.logs.burst(200)
        second = group.join("b", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(10, lambda: len(first.owned) == len(second.owned) == 2)
        group.broker_faults.move_leader(min(first.owned), 0.2)
        group.seek(first, min(first.owned), 7)
        group.seek(second, min(second.owned), group.logs.end(min(second.owned)))
        group.world.pass_time(3)
        group.leave(first)
        group.world.pass_time(3)
        group.join("c", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(3)
        group.kill(second)
        group.come_to_rest(2 * SESSION_TIMEOUT + 20, 5)
        require_stored(group, storage)


@STORAGES
@pytest.mark.parametrize("fault", ["moved", "loads", "silent", "stopped", "hangs up"])
def test_a_coordinator_that_is_away_for_a_while(storage: Storage, fault: str) -> None:
    """Nothing is given up meanwhile, and what was processed is stored when it is back, or elsewhere."""
    with simulated_group(1, Scene(brokers=2, storage=storage)) as group:
        group.logs.grow("t", 4)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(group.coordinator.stored) == 4)
        group.world.pass_time(3)
        match fault:
            case "moved":
                group.coordinator.broker = 1
            case "loads":
                group.coordinator.refuses = frames.LOADING
            case "silent":
                group.broker_faults.silence(0, 8.0)
            case "stopped":
                group.broker_faults.stop(0, 8.0)
                group.world.after(5.0, lambda: setattr(group.coordinator, "broker", 1))
            case "hangs up":
                group.brokers[0].hangs_up = True
        group.world.pass_time(9)
        group.coordinator.refuses = frames.NONE
        assert len(member.owned) == 4
        failed = [each for each in group.events if each["event"] == "periodic commit failed, the next one retries"]
        assert bool(failed) == (fault in ("loads", "silent", "stopped"))
        group.come_to_rest(30, 5)
        require_stored(group, storage)


def test_a_copy_that_is_larger_counts_and_one_of_before_a_reset_does_not() -> None:
    """As in a group whose members of another kind had stored their offsets with the brokers alone."""
    with simulated_group(1, Scene(storage="both")) as group:
        group.logs.grow("t", 2)
        group.logs.burst(100)
        large, reset = group.logs.partitions
        group.coordinator.stored = {large: Kept(70, -1, ""), reset: Kept(70, -1, "kzconsumer epoch 0")}
        for partition in (large, reset):
            group.ensemble.make(group.paths.offset(partition), b"20")
        topic = group.ensemble.tree.nodes[paths.topic("t")]
        record = ClaimRecord(1, "range", f"{topic.czxid:#x}", epoch=1)
        group.ensemble.make(group.paths.claim_record(reset), encode_claim_record(record))
        group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(5)
        group.check()
        found = {(each["event"], each["partition"], each["continues_at"]) for each in group.events if "brokers" in each}
        assert found == {
            ("stored offsets differ", large.partition, 70),
            ("offset with the brokers is older than the last reset", reset.partition, 20),
        }
        assert {partition: kept.metadata for partition, kept in group.coordinator.stored.items()} == {
            large: "kzconsumer epoch 0", reset: "kzconsumer epoch 1"
        }  # fmt: skip
        assert all(group.coordinator.stored[each].offset > 100 for each in (large, reset))


@STORAGES
def test_an_owner_node_of_a_claim_that_could_not_begin_is_deleted_though_that_fails_first(storage: Storage) -> None:
    """The partition is another member's by then: nothing but the memory of the failed claim leads to its node."""
    with simulated_group(1, Scene(brokers=2, storage=storage)) as group:
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(member.owned) == 2)
        group.network.losing[member.process] = Loss(False, "release", refusal=SYSTEM_ERROR)
        group.delete_owner(group.logs.partitions[1])
        group.refuse_offsets(frames.UNKNOWN_SERVER_ERROR, 1.0)
        group.world.pass_time(0.2)
        group.join("b", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(4)
        assert not group.network.losing
        group.come_to_rest(20, 3)
