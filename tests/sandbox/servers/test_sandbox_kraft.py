"""`kzconsumer sandbox`: clusters without ZooKeeper, and one that leaves it."""

from __future__ import annotations

import pytest

from kzconsumer_sandbox.servers.readiness import ephemeral_nodes, led_partitions
from tests.sandbox.servers.conftest import Commands
from tests.sandbox.servers.test_sandbox import servers_of
from tests.support.extent import only_nightly
from tests.support.processes import exists

REGISTERED = "/brokers/ids/1"


def test_a_cluster_in_kraft_mode(sandbox: Commands) -> None:
    refused = sandbox("up", "--kafka-version", "1.1.1", "--kraft")
    assert refused.stderr == "kzconsumer: Kafka 1.1.1 has no KRaft mode here; 3.9.1 and 4.2.0 do\n"
    status = sandbox.up("--kraft")
    assert (status["kafka_version"], status["kraft"], status["migrated"]) == ("3.9.1", True, [])
    assert "Kafka 3.9.1 (KRaft), 1 broker" in sandbox("status").stdout
    assert sandbox("topic", "orders").returncode == 0
    zookeeper, broker = status["zookeeper"], status["brokers"][0]
    assert led_partitions(broker["host"], broker["port"], "orders") == {0, 1, 2, 3}
    assert status["bootstrap"] in sandbox("env").stdout.partition("BROKERS__BOOTSTRAP=")[2].splitlines()[0]
    assert REGISTERED not in ephemeral_nodes(zookeeper["host"], zookeeper["port"])
    done = sandbox("migrate")
    able = "`kzconsumer sandbox up` starts a 3.9.1 that can"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"kzconsumer: this Kafka 3.9.1 has no ZooKeeper to leave: {able}\n"


@only_nightly
@pytest.mark.timeout(400)
def test_the_steps_of_a_migration(sandbox: Commands) -> None:
    """Topics can be made and written in each phase, and nothing is left running at the end."""
    old = sandbox.up()
    assert sandbox("produce", "orders", "--records", "10").returncode == 0
    zookeeper, broker = old["zookeeper"], old["brokers"][0]
    steps = (
        ("3.9.1", "a KRaft controller, which also writes to ZooKeeper"),
        ("3.9.1", "brokers in KRaft mode; the controller also writes to ZooKeeper"),
        ("3.9.1", "KRaft; the cluster has left ZooKeeper"),
        ("4.2.0", "KRaft; the cluster has left ZooKeeper"),
    )
    for number, (version, mode) in enumerate(steps, 1):
        done = sandbox("migrate")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"step {number} of 4\nKafka {version} ({mode}), 1 broker")
        assert sandbox("status").returncode == 0
        assert (REGISTERED in ephemeral_nodes(zookeeper["host"], zookeeper["port"])) == (number == 1)
        assert sandbox("topic", f"of-step-{number}").returncode == 0
        produced = sandbox("produce", "orders", "--records", "10")
        assert (produced.returncode, produced.stdout) == (0, "produced 10 records to orders\n"), produced
        assert led_partitions(broker["host"], broker["port"], "orders") == {0, 1, 2, 3}
    assert sandbox("migrate").stderr == "kzconsumer: the migration is complete\n"
    status = sandbox.status()
    assert (status["kafka_version"], len(status["migrated"])) == ("4.2.0", 4)
    assert sandbox("down").returncode == 0
    assert not any(map(exists, servers_of(status)))
