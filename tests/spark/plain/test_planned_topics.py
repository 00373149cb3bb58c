"""What a driver finds of topics whose ranges were planned, in a simulated cluster.

`servers/test_kafka_registry.py` has real servers.
"""

from __future__ import annotations

import random

import pytest

from kzconsumer.model import Broker, RangeIdentity
from kzconsumer.registry import paths
from kzconsumer.settings.settings import Settings
from kzconsumer_spark.executors.planned_topics import KafkaRegistry, TopicRecreatedError
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from tests.support.extent import seeds
from tests.support.simulated.blocking import Program, blocking
from tests.support.simulated.group import simulated_group
from tests.support.simulated.network import CONNECT


@pytest.mark.parametrize("seed", seeds(3, 300))
def test_a_topic_is_gone_if_it_is_not_the_one_that_was_planned(seed: int) -> None:
    chance = random.Random(seed)
    with simulated_group(seed, brokers=2) as group, blocking(program := Program(group, "driver")):
        topics = [f"t{number}" for number in range(chance.randint(1, 4))]
        for topic in topics:
            group.logs.grow(topic, 2)
        incarnations = {topic: group.ensemble.tree.nodes[paths.topic(topic)].czxid for topic in topics}
        ranges = [RangeIdentity(topic, n, incarnations[topic], 0, 0, 5) for topic in topics for n in range(2)]
        gone = {}
        for topic in topics:
            match chance.choice(("kept", "kept", "was deleted", "was deleted and created again")):
                case "kept":
                    continue
                case what:
                    group.logs.delete(topic)
                    if what != "was deleted":
                        group.logs.grow(topic, 1)
                    gone[topic, incarnations[topic]] = f"topic {topic} {what} after its ranges were planned"
        settings = Settings.from_dict({"zookeeper": {"connect": CONNECT}, "group": {"id": "g"}})
        registry = KafkaRegistry(Kafka.of(settings))
        found = registry.planned(ranges)
        assert (found.gone, found.ids) == (gone, {})
        brokers = tuple(Broker(number, f"kafka{number}", 9092) for number in range(2))
        assert found.brokers == registry.brokers() == registry.reachable() == brokers
        registry.require_planned([each for each in ranges if (each.topic, each.incarnation) not in gone])
        for topic, incarnation in gone:
            with pytest.raises(TopicRecreatedError, match=f"^{gone[topic, incarnation]}$"):
                registry.require_planned([each for each in ranges if each.topic == topic])
        program.end()


def test_brokers_are_asked_with_the_security_of_the_settings() -> None:
    with simulated_group(1, brokers=2) as group, blocking(program := Program(group, "driver")):
        group.logs.grow("t", 1)
        group.logs.register(up=False)
        tables = {"zookeeper": {"connect": CONNECT}, "group": {"id": "g"}, "brokers": {"bootstrap": ["kafka1:9092"]}}
        registry = KafkaRegistry(Kafka.of(Settings.from_dict(tables)))
        assert [each.id for each in registry.reachable()] == [0, 1]
        program.end()
