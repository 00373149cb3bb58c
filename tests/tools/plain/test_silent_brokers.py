"""What a command says of a group whose brokers do not answer: figures are unknown, and ZooKeeper is not blamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import msgspec
import pytest

from kzconsumer.errors import BrokersUnreachableError, CoordinatorError
from kzconsumer.registry.cluster import LIMIT
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.operations import Create
from kzconsumer_tools.commands.cluster_option import ClusterOption, read_topics
from kzconsumer_tools.commands.groups_commands import described_group
from kzconsumer_tools.commands.lag_command import read_lag
from kzconsumer_tools.groups.cluster_access import OFFSETS_TOPIC
from kzconsumer_tools.groups.group_description import GroupDescription
from kzconsumer_tools.groups.group_lag import GroupLag
from kzconsumer_tools.offsets.prepare import GroupView, read_known_view
from kzconsumer_tools.offsets.stored_offsets import group_offsets
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.broker import SimulatedBroker
from tests.support.simulated.ensemble import Ensemble
from tests.support.simulated.network import SimulatedNetwork
from tests.support.simulated.partition_logs import PartitionLogs, host
from tests.support.simulated.product import product_in
from tests.support.simulated.virtual_time import World

BROKERS = 4
"""Each leads a partition of the topic that the group has read to offset 3."""

T = TypeVar("T")


class HangsAt(Counter[int]):
    """The requests of a broker, which answers nothing any more from the first one with this key on."""

    def __init__(self, broker: SimulatedBroker, key: int) -> None:
        super().__init__()
        self._broker, self._key = broker, key

    def __setitem__(self, key: int, number: int) -> None:
        super().__setitem__(key, number)
        if key == self._key:
            self._broker.silent = True


class Asked:
    def __init__(self) -> None:
        self.world = World(1)
        ensemble = Ensemble(self.world)
        network = SimulatedNetwork(ensemble)
        self.logs = logs = PartitionLogs(ensemble, BROKERS, 1)
        logs.stop()
        self.brokers = [SimulatedBroker(self.world, logs, number) for number in logs.brokers]
        network.hosts.update({host(broker.number): broker for broker in self.brokers})
        logs.grow("t", BROKERS)
        logs.burst(10)
        for partition in logs.partitions:
            path = GroupPaths("g").offset(partition)
            if partition.partition == 0:
                ensemble.make(path.rpartition("/")[0])
            ensemble.operate(Create(path, b"3"))
        settings = Settings.from_dict({"zookeeper": {"connect": "zk0,zk1,zk2"}, "group": {"id": "g"}})
        self.addresses = tuple(f"{host(broker.number)}:9092" for broker in self.brokers)
        self.at = ClusterOption(settings.zookeeper, settings.brokers, "g", "test")

    def answer(self, question: Coroutine[Any, Any, T]) -> T:
        """Of a command."""
        process = self.world.process("command")
        asking = process.create_task(question)
        self.world.pass_time(LIMIT + 5.0, asking.done)
        self.world.end(process)
        return asking.result()

    def lag(self) -> GroupLag:
        return self.answer(read_lag(self.at, "g", None))

    async def known_view(self) -> GroupView:
        async with self.at.access() as access:
            return await read_known_view(access, await access.nodes("g"), self.at.storage)

    def described(self) -> GroupDescription:
        return self.answer(described_group(self.at, "g"))


@pytest.fixture
def cluster() -> Iterator[Asked]:
    made = Asked()
    with product_in(made.world):
        yield made


def test_control_brokers_that_answer(cluster: Asked) -> None:
    lag = cluster.lag()
    assert (lag.lag, lag.unknown) == (7 * BROKERS, {})


def test_brokers_that_hang(cluster: Asked) -> None:
    """Each question is put to one after the other."""
    for broker in cluster.brokers:
        broker.set_silent(True)
    lag = cluster.lag()
    assert (lag.lag, lag.unknown, lag.health) == (None, {"brokers unreachable": BROKERS}, "not examined")
    assert cluster.described().health == "not examined"


def test_brokers_that_hang_from_the_second_question_on(cluster: Asked) -> None:
    """They have said who leads which partition: each question after that is answered by none of them."""
    for broker in cluster.brokers:
        broker.requests = HangsAt(broker, frames.LIST_OFFSETS)
    lag = cluster.lag()
    assert (lag.lag, lag.unknown, lag.health) == (None, {"brokers unreachable": BROKERS}, "not examined")
    assert cluster.described().health == "not examined"


def test_what_silent_brokers_store_is_unknown(cluster: Asked) -> None:
    """It is not "never committed". What ZooKeeper has is shown; which of the two counts is not known."""
    cluster.logs.grow(OFFSETS_TOPIC, 1)
    for broker in cluster.brokers:
        broker.set_silent(True)
    cluster.at = cluster.at._replace(storage="both")
    found = cluster.described()
    assert [(each.stored, each.why) for each in found.partitions] == [(None, "brokers unreachable")] * BROKERS
    assert (found.health, cluster.lag().unknown) == ("not examined", {"brokers unreachable": BROKERS})
    view = cluster.answer(cluster.at.view("g"))
    shown = group_offsets(view.nodes, "both", view.brokers)
    assert [(each.stored, each.why, each.zookeeper) for each in shown.partitions] == [
        (None, "brokers unreachable", 3)
    ] * BROKERS
    with pytest.raises(CoordinatorError, match="tried for 10 s"):  # what changes offsets does not go on
        cluster.answer(cluster.known_view())


def test_a_command_that_needs_brokers_does_not_blame_zookeeper(cluster: Asked) -> None:
    """It asks them for the topics."""
    for broker in cluster.brokers:
        broker.set_silent(True)
    at = cluster.at._replace(brokers=msgspec.structs.replace(cluster.at.brokers, bootstrap=cluster.addresses))
    with pytest.raises(BrokersUnreachableError, match="no broker answers: broker"):
        cluster.answer(read_topics(at, None))
