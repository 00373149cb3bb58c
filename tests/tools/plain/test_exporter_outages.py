"""What the exporter reports, and what it asks of brokers, while parts of the cluster are away.

All in one simulated world. A figure is right, or it is unknown: never old, never 0.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest

from kzconsumer.brokers.leaders import why_unknown
from kzconsumer.brokers.protocol.groups import GroupState
from kzconsumer.brokers.protocol.log_reads import ListedOffset
from kzconsumer.errors import BrokersUnreachableError, KzConsumerError
from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.operations import Create, Delete
from kzconsumer_tools.exporter import exporter as module
from kzconsumer_tools.exporter.exporter import DELAY, VALID, Exporter, ExporterReading
from kzconsumer_tools.exporter.exporter_server import families
from kzconsumer_tools.exporter.kafka_groups import KafkaGroup, KafkaGroups
from kzconsumer_tools.groups.cluster_access import answered, log_ranges
from kzconsumer_tools.groups.group_lag import LogRange
from tests.support.extent import extent
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.broker import SimulatedBroker
from tests.support.simulated.ensemble import Ensemble
from tests.support.simulated.network import SimulatedNetwork
from tests.support.simulated.partition_logs import PartitionLogs, host
from tests.support.simulated.product import product_in
from tests.support.simulated.virtual_time import World

INTERVAL = 30.0
BROKERS = 3
STORED, END = 3, 10


class Followed:
    """A cluster whose every partition each group has read to `STORED`, and an exporter that follows it."""

    def __init__(self, topics: int, partitions: int, groups: str, *, kafka_groups: bool) -> None:
        self.world = World(1)
        self.ensemble = Ensemble(self.world)
        self.network = SimulatedNetwork(self.ensemble)
        self.logs = PartitionLogs(self.ensemble, BROKERS, 1)
        self.logs.stop()
        self.brokers = [SimulatedBroker(self.world, self.logs, number) for number in self.logs.brokers]
        self.network.hosts.update({host(broker.number): broker for broker in self.brokers})
        for number in range(topics):
            self.logs.grow(f"t{number}", partitions)
        self.logs.burst(END)
        for group in map(GroupPaths, groups):
            for partition in self.logs.partitions:
                path = group.offset(partition)
                if partition.partition == 0:
                    self.ensemble.make(path.rpartition("/")[0])
                self.ensemble.operate(Create(path, b"%d" % STORED))
        settings = Settings.from_dict({"zookeeper": {"connect": "zk0,zk1,zk2"}, "group": {"id": "unused"}})
        self.exporter = Exporter(settings, "c", INTERVAL, 300.0, kafka_groups=kafka_groups)
        self.process = self.world.process("exporter")
        self.task: asyncio.Task[None] | None = None
        self.always_up = True

    def start(self) -> None:
        self.task = self.process.create_task(self.exporter.run())
        assert not self.exporter.settled
        assert self.world.pass_time(INTERVAL, lambda: self.exporter.present)
        assert self.exporter.settled
        self.world.after(1.0, self._look)

    def _look(self) -> None:
        self.always_up &= self.exporter.present is not None
        self.world.after(1.0, self._look)

    def next(self) -> ExporterReading:
        """The next one, which may be under way."""
        assert self.world.pass_time(VALID * INTERVAL, partial(self._is_new, self.exporter.present))
        assert self.exporter.present is not None
        return self.exporter.present

    def reading(self) -> ExporterReading:
        """One that has begun from now on."""
        self.next()
        return self.next()

    def _is_new(self, before: ExporterReading | None) -> bool:
        return self.exporter.present not in (None, before)

    @property
    def asked(self) -> Counter[int]:
        """Requests to all brokers, by key."""
        return sum((broker.requests for broker in self.brokers), Counter())

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        metrics = {metric.name: metric for metric in families(self.exporter)}
        samples = metrics[f"kzconsumer_{name}"].samples if f"kzconsumer_{name}" in metrics else []
        return {tuple(list(each.labels.values())[1:]): each.value for each in samples}

    def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        self.world.pass_time(60.0, self.task.done)
        self.world.end(self.process)


@contextmanager
def followed(
    topics: int = 3, partitions: int = 4, groups: str = "ab", *, kafka_groups: bool = False
) -> Iterator[Followed]:
    made = Followed(topics, partitions, groups, kafka_groups=kafka_groups)
    with product_in(made.world), mock.patch.object(module, "time", SimpleNamespace(time=lambda: made.world.now)):
        made.start()
        try:
            yield made
        finally:
            made.end()


def lags(reading: ExporterReading, group: str = "a") -> Counter[int | None]:
    return Counter(each.lag for each in reading.groups[group].partitions)


def test_a_reading_asks_each_leader_once() -> None:
    """Of so many partitions."""
    topics = extent(4, 50)
    with followed(topics, 100, "a") as cluster:
        assert lags(cluster.reading()) == {END - STORED: 100 * topics}
        before = cluster.asked
        for _ in range(10):
            cluster.next()
        asked = cluster.asked - before
        assert asked.keys() <= {frames.METADATA, frames.LIST_OFFSETS, frames.FETCH}
        assert asked[frames.LIST_OFFSETS] == 2 * 10 * BROKERS, "starts and ends"
        assert asked[frames.METADATA] <= 3 * 10
        assert asked[frames.FETCH] <= 10 * BROKERS


@pytest.mark.parametrize("hanging", [[0], [0, 1]])
def test_brokers_that_hang(hanging: list[int]) -> None:
    with followed() as cluster:
        assert lags(cluster.reading()) == {END - STORED: 12}
        for number in hanging:
            cluster.brokers[number].set_silent(True)
        cluster.world.pass_time(300.0)
        standing = cluster.samples("group_stalled_partitions")
        assert standing == {("a",): 12, ("b",): 12}
        lost, behind = sum(leader in hanging for leader in cluster.logs.leaders.values()), END - STORED
        for _ in range(3):
            assert lags(cluster.reading()) == {END - STORED: 12 - lost, None: lost}
            assert cluster.samples("exporter_complete") == {(): 0.0}
            assert cluster.samples("group_lag_records") == {}
            assert cluster.samples("group_lag_records_at_least") == {("a",): 12 * behind, ("b",): 12 * behind}
            why = "brokers unreachable"
            assert cluster.samples("group_unknown_partitions") == {("a", why): lost, ("b", why): lost}
        assert cluster.samples("group_stalled_partitions") == standing, "a log does not get shorter"
        for number in hanging:
            cluster.brokers[number].set_silent(False)
        assert lags(cluster.reading()) == {END - STORED: 12}
        assert cluster.samples("exporter_complete") == {(): 1.0}
        assert cluster.always_up


def test_an_end_that_is_unknown_makes_its_log_unknown() -> None:
    """Both answers of each partition; one whose beginning is unknown is not asked for its end."""
    partitions = [TopicPartition("t", number) for number in range(3)]
    away = BrokersUnreachableError("away")
    some: list[ListedOffset | KzConsumerError] = [ListedOffset(0, 1, -1), ListedOffset(0, 2, -1), away]
    starts = dict(zip(partitions, some, strict=True))
    assert answered(starts) == partitions[:2]
    found = log_ranges(starts, {partitions[0]: ListedOffset(0, 9, -1), partitions[1]: away})
    assert found == {partitions[0]: LogRange(1, 9), partitions[1]: why_unknown(away), partitions[2]: why_unknown(away)}


def test_a_broker_that_is_away() -> None:
    with followed() as cluster:
        cluster.brokers[1].stop()
        led = [partition for partition, leader in cluster.logs.leaders.items() if leader == 1]
        assert lags(cluster.reading()) == {END - STORED: 12 - len(led), None: len(led)}
        for partition in led[1:]:
            cluster.logs.lead(partition, 0)
        cluster.logs.lead(led[0], -1)
        assert lags(cluster.reading()) == {END - STORED: 11, None: 1}


@pytest.mark.parametrize("away", [60.0, 300.0])
def test_zookeeper_is_away(away: float) -> None:
    """Longer than a reading counts: nothing is reported but that. The session may have expired."""
    with followed() as cluster:
        cluster.reading()
        for server in cluster.ensemble.servers:
            server.set_cut_off(True)
        cluster.logs.burst(1)
        cluster.world.pass_time(away)
        assert cluster.always_up == (cluster.exporter.present is not None) == (away == 60.0)
        if away > VALID * INTERVAL + DELAY:
            assert cluster.samples("exporter_up") == {(): 0.0}
            assert cluster.samples("group_lag_records") == cluster.samples("group_members") == {}
            assert "zk" in cluster.exporter.absence
        for server in cluster.ensemble.servers:
            server.set_cut_off(False)
        assert lags(cluster.reading()) == {END + 1 - STORED: 12}
        assert cluster.samples("exporter_up") == {(): 1.0}


def test_a_group_and_a_topic_are_deleted() -> None:
    with followed() as cluster:
        cluster.reading()
        gone = sorted((each for each in cluster.ensemble.tree.nodes if each.startswith("/consumers/b")), reverse=True)
        cluster.ensemble.operate(*(Delete(path, -1) for path in gone))
        cluster.logs.delete("t1")
        reading = cluster.reading()
        assert list(reading.groups) == ["a"]
        assert lags(reading) == {END - STORED: 8, None: 4}
        assert cluster.samples("group_lag_records") == {("a",): 8 * (END - STORED)}
        assert cluster.samples("group_unknown_partitions") == {}
        assert cluster.samples("group_gone_offsets") == {("a",): 4}
        assert {topic for topic, _ in cluster.samples("topic_end_offset")} == {"t0", "t2"}
        cluster.logs.grow("t1", 4)  # another topic, in which the stored offset is after the end
        assert lags(cluster.reading()) == {END - STORED: 8, None: 4}


def test_brokers_that_do_not_list_their_groups_any_more() -> None:
    """The offsets in ZooKeeper of a group that had others with them are old. A group that is deleted is forgotten."""
    with_brokers = KafkaGroup(GroupState(0, "Empty", ()), {TopicPartition("t0", 0): END})
    found = KafkaGroups({"a": with_brokers}, None)

    async def read_kafka_groups(*arguments: object) -> KafkaGroups:
        return found

    with mock.patch.object(module, "read_kafka_groups", read_kafka_groups), followed(kafka_groups=True) as cluster:
        assert list(cluster.reading().groups) == ["a", "b"]
        found = KafkaGroups({}, BrokersUnreachableError("connection refused"))
        assert list(cluster.reading().groups) == ["b"]
        assert cluster.exporter.histories.of_groups.keys() == {"a", "b"}
        gone = sorted((each for each in cluster.ensemble.tree.nodes if each.startswith("/consumers/b")), reverse=True)
        cluster.ensemble.operate(*(Delete(path, -1) for path in gone))
        assert not cluster.reading().groups
        assert cluster.exporter.histories.of_groups.keys() == {"a"}
