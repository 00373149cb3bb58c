"""The group machine with brokers that fail: leaders, logs and topics change, responses are late, torn or never sent.

Separate from `GroupMachine`, since the planted bugs need none of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.simulated.kafka_frames import (
    FETCH,
    LIST_OFFSETS,
    LOADING,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_NOT_AVAILABLE,
    UNKNOWN_SERVER_ERROR,
)
from tests.support.simulated.lost_replies import SYSTEM_ERROR, Loss
from tests.support.simulated.machine import (
    ANY,
    CLOCKS,
    FAULTS,
    MOST_MEMBERS,
    OVERLOADS,
    SCENES,
    WAITS,
    GroupMachine,
    ProcessesMachine,
)
from tests.support.simulated.scene import SESSION_TIMEOUT, Scene

BROKERS = 2
TIGHT = (
    ("queue_bytes", "48KiB"),
    ("total_queue_bytes", "96KiB"),
    ("response_bytes", "128KiB"),
    ("max_bytes", "96KiB"),
)
"""Queues that are often full, and responses in which not every partition has room."""
QUICK = (("max_wait", "100ms"),)
"""Waits that grow while nothing comes."""
FETCHES = st.sampled_from(((), QUICK, TIGHT, (*TIGHT, *QUICK), (*TIGHT, ("rate_limit", "256KiB"))))
PARTS = st.sampled_from((0.0, 0.3, 0.9, 1.0))
"""How much of a response arrives before the connection breaks."""
REQUESTS = st.sampled_from((FETCH, FETCH, METADATA, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH))
FEW = 6
"""Partitions whose owner nodes are all looked at before a group has to be at rest, also one at a time."""
COORDINATOR_ERRORS = st.sampled_from((LOADING, UNKNOWN_SERVER_ERROR))
GAPS = st.sampled_from((0.0, 0.2, 2.0))
"""Seconds without a leader, or without the topic."""


class BrokersMachine(ProcessesMachine):
    """Faults of two brokers and of ZooKeeper, for processes of any kind."""

    @rule(which=ANY, lasts=FAULTS, alone=FAULTS, wait=WAITS)
    def stop_the_zookeeper_leader(self, which: int, lasts: float, alone: float, wait: float) -> None:
        self.faults.stop_leader(which % 3, lasts, alone)
        self.wait(wait)

    @rule(which=ANY, gap=GAPS, wait=WAITS)
    def move_leader(self, which: int, gap: float, wait: float) -> None:
        self.group.broker_faults.move_leader(self.partition(which), gap)
        self.wait(wait)

    @rule(which=ANY, lasts=FAULTS, wait=WAITS)
    def silence_broker(self, which: int, lasts: float, wait: float) -> None:
        self.group.broker_faults.silence(which % BROKERS, lasts)
        self.wait(wait)

    @rule(which=ANY, request=REQUESTS, by=st.sampled_from((0.05, 0.4, 1.5)), lasts=FAULTS, wait=WAITS)
    def slow_down_broker(self, which: int, request: int, by: float, lasts: float, wait: float) -> None:
        self.group.broker_faults.slow_down(which % BROKERS, request, by, lasts)
        self.wait(wait)

    @rule(which=ANY, quota=st.sampled_from((3_000, 30_000, 300_000)), lasts=FAULTS, wait=WAITS)
    def limit_client(self, which: int, quota: int, lasts: float, wait: float) -> None:
        self.group.broker_faults.limit_client(which % BROKERS, quota, lasts)
        self.wait(wait)

    @rule(which=ANY, wait=WAITS)
    def evict_sessions(self, which: int, wait: float) -> None:
        self.group.broker_faults.evict_sessions(which % BROKERS)
        self.wait(wait)

    @rule(which=ANY, lasts=FAULTS, wait=WAITS)
    def stop_broker(self, which: int, lasts: float, wait: float) -> None:
        self.group.broker_faults.stop(which % BROKERS, lasts)
        self.wait(wait)

    @precondition(lambda self: self.active)
    @rule(which=ANY, part=PARTS, wait=WAITS)
    def tear_a_response(self, which: int, part: float, wait: float) -> None:
        self.group.network.tearing[self.one(which).process] = part
        self.wait(wait)

    @rule(by=CLOCKS, wait=WAITS)
    def set_clock(self, by: float, wait: float) -> None:
        self.group.world.wall_ahead += by
        self.wait(wait)

    @rule(share=OVERLOADS, lasts=FAULTS, wait=WAITS)
    def overload_zookeeper(self, share: float, lasts: float, wait: float) -> None:
        self.faults.overload(share, lasts)
        self.wait(wait)


class GroupAndBrokersMachine(GroupMachine, BrokersMachine):
    """See the module."""

    @initialize(
        seed=st.integers(0, 2**16),
        partitions=st.integers(1, 5),
        scene=SCENES,
        record_bytes=st.sampled_from((1, 1500)),
        fetch=FETCHES,
        storage=st.sampled_from(("zookeeper", "both")),
    )
    def begin(
        self,
        seed: int,
        partitions: int,
        scene: Scene,
        record_bytes: int,
        fetch: tuple[tuple[str, str], ...],
        storage: Literal["zookeeper", "both"],
    ) -> None:
        made_of = replace(scene, brokers=BROKERS, record_bytes=record_bytes, fetch=fetch, storage=storage)
        self.start(seed, partitions, replace(made_of, decoding=3.0 if seed % 3 == 1 else 0.0))

    @precondition(lambda self: self.group.promises.read)
    @rule(which=ANY, read=st.sampled_from((1, 9, 30)), past=st.sampled_from((-1, 3, 3, 60)), gap=GAPS, wait=WAITS)
    def elect_uncleanly(self, which: int, read: int, past: int, gap: float, wait: float) -> None:
        """So many records are lost that were read. The log grows past them at once, or as fast as always."""
        found = self.group.promises.read
        partition, until = found[which % len(found)]
        end = self.group.logs.end(partition)
        lost = end - max(min(until, end) - read, 0)
        self.group.broker_faults.elect_uncleanly(partition, lost, lost + past if past >= 0 else 0, gap)
        self.wait(wait)

    @rule(which=ANY, error=st.sampled_from((OFFSET_NOT_AVAILABLE, UNKNOWN_SERVER_ERROR)), lasts=FAULTS, wait=WAITS)
    def list_nothing(self, which: int, error: int, lasts: float, wait: float) -> None:
        """A leader that was elected just now does not know yet how far its log can be read."""
        self.group.broker_faults.list_nothing(which % BROKERS, error, lasts)
        self.wait(wait)

    @rule(records=st.sampled_from((40, 200)), takes=st.sampled_from((0.3, 1.3)), lasts=FAULTS, wait=WAITS)
    def produce_remotely(self, records: int, takes: float, lasts: float, wait: float) -> None:
        """The broker sends none of them for a while, and each partition is asked for alone."""
        self.group.broker_faults.produce_remotely(records, takes, lasts)
        self.wait(wait)

    @rule(which=ANY, wait=WAITS)
    def hang_up(self, which: int, wait: float) -> None:
        """The next request gets no answer."""
        self.group.brokers[which % BROKERS].hangs_up = True
        self.wait(wait)

    @precondition(lambda self: self.group.scene.storage == "both")
    @rule(wait=WAITS)
    def move_coordinator(self, wait: float) -> None:
        self.group.coordinator.broker = (self.group.coordinator.broker + 1) % BROKERS
        self.wait(wait)

    @precondition(lambda self: self.group.scene.storage == "both")
    @rule(error=COORDINATOR_ERRORS, lasts=FAULTS, wait=WAITS)
    def refuse_offsets(self, error: int, lasts: float, wait: float) -> None:
        """The coordinator stores and returns none."""
        self.group.refuse_offsets(error, lasts)
        self.wait(wait)

    @precondition(lambda self: self.group.scene.storage == "both")
    @rule(error=COORDINATOR_ERRORS, which=ANY, lasts=FAULTS, wait=st.sampled_from((0.0, 1.5, 15.0)))
    def fail_a_claim_and_its_end(self, error: int, which: int, lasts: float, wait: float) -> None:
        """It cannot begin without the brokers' offset, and ZooKeeper does not delete its owner node at once.

        By the next attempt it may be another member's, as the last partitions are with the range assignor.
        """
        for member in self.active:
            self.group.network.losing[member.process] = Loss(False, "release", 1, SYSTEM_ERROR)
        self.delete_owner(-1 - which, 0.0)
        self.refuse_offsets(error, lasts, 0.2)
        if len(self.active) < MOST_MEMBERS:
            self.join(1, False, 0.0, "messages", 0.0)
        self.wait(wait)

    @rule(which=ANY, part=st.integers(1, 4), wait=WAITS)
    def delete_records(self, which: int, part: int, wait: float) -> None:
        partition = self.partition(which)
        self.group.broker_faults.retain(partition, self.group.logs.end(partition) * part // 4)
        self.wait(wait)

    @rule(which=ANY, part=st.integers(0, 3), wait=WAITS)
    def compact(self, which: int, part: int, wait: float) -> None:
        """The next record is there for good."""
        partition = self.partition(which)
        self.group.broker_faults.compact_end(partition, self.group.logs.end(partition) * part // 4)
        self.group.logs.grow_log(partition, 1)
        self.wait(wait)

    @rule(which=ANY, partitions=st.integers(1, 3), gap=GAPS, wait=WAITS)
    def recreate_topic(self, which: int, partitions: int, gap: float, wait: float) -> None:
        self.group.broker_faults.recreate(self.topics[which % len(self.topics)], partitions, gap)
        self.wait(wait)


class LogsCutOffMachine(GroupAndBrokersMachine):
    """The same of a group that has read something, and whose logs are often cut off."""

    @initialize(
        seed=st.integers(0, 2**16),
        partitions=st.integers(1, 3),
        scene=SCENES,
        in_batches=st.booleans(),
        pace=st.sampled_from((0.0, 0.05, 1.0)),
    )
    def begin(self, seed: int, partitions: int, scene: Scene, in_batches: bool, pace: float = 0.0) -> None:
        self.start(seed, partitions, replace(scene, brokers=BROKERS))
        self.names += 1
        self.group.join(f"m{self.names}", {"t": 2}, pace, in_batches=in_batches)
        self.wait(SESSION_TIMEOUT)

    @precondition(lambda self: self.group.promises.read)
    @rule(which=ANY, read=st.sampled_from((1, 9, 30)), wait=WAITS)
    def cut_off(self, which: int, read: int, wait: float) -> None:
        self.elect_uncleanly(which, read, 3, 0.0, wait)


class ZooKeeperRestoredMachine(GroupMachine):
    """A group that has read something, and whose ZooKeeper often goes back to an earlier state, or loses its nodes."""

    @initialize(
        seed=st.integers(0, 2**16),
        partitions=st.integers(2, 4),
        scene=SCENES.map(lambda scene: replace(scene, quiet=True)),
        in_batches=st.booleans(),
    )
    def begin(self, seed: int, partitions: int, scene: Scene, in_batches: bool) -> None:
        self.start(seed, partitions, replace(scene, looks="3s"))
        for self.names in (1, 2):
            self.group.join(f"m{self.names}", {"t": 1}, 0.0, in_batches=in_batches)
        self.wait(SESSION_TIMEOUT)

    @rule(ago=st.sampled_from((0.1, 1.0, 3.0, 10.0, 60.0)), elected=st.booleans(), wait=WAITS)
    def restore_zookeeper(self, ago: float, elected: bool, wait: float) -> None:
        """No event reports to sessions that go on what they have lost: members find it when they look."""
        self.group.restore_zookeeper(ago, elected=elected and self.group.scene.looks != "1h")
        self.wait(wait)

    @rule(ago=st.sampled_from((0.3, 2.0, 5.0)), wait=WAITS)
    def lose_transactions(self, ago: float, wait: float) -> None:
        self.restore_zookeeper(ago, True, wait)

    @precondition(lambda self: 1 < len(self.group.logs.partitions) <= FEW)
    @rule(which=ANY, deleted=st.booleans(), wait=st.sampled_from((0.0, 1.5, 15.0)))
    def change_an_owner_unseen(self, which: int, deleted: bool, wait: float) -> None:
        """Also of this no event comes, and there are no records to commit: only a look finds it."""
        quiet = [partition for partition in self.group.logs.partitions if partition.partition % 2]
        self.group.change_owner_unseen(quiet[which % len(quiet)], deleted=deleted)
        self.wait(wait)

    @rule(wait=WAITS)
    def delete_nodes(self, wait: float) -> None:
        self.group.delete_nodes()
        self.wait(wait)
