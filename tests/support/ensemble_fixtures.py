"""ZooKeeper servers that tests may stop, one or three, and clusters on them, for the tests of a chain of files."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
    from tests.support.ensemble import Ensemble
    from tests.support.servers import Servers


@pytest.fixture
def mortal(servers: Servers) -> ZooKeeperServer:
    """A test that stops or kills it has it run again at its end."""
    return servers.mortal()


@pytest.fixture
def mortal_cluster(servers: Servers, mortal: ZooKeeperServer) -> Cluster:
    """Its broker's session outlives every stop in these tests: the members' behaviour is tested, not the brokers'."""
    config = {"zookeeper.session.timeout.ms": 60_000}
    return servers.shared("mortal", lambda name: servers.cluster(name, zookeeper=mortal, config=config))


@pytest.fixture
def three(servers: Servers) -> Iterator[Ensemble]:
    """The ensemble, whole before and after."""
    running = servers.ensemble()
    running.wait_ready()
    yield running
    for server in running.servers:
        running.mend(server)
        if server.alive:
            server.send_signal(signal.SIGCONT)  # a test that is ended while it has stopped one does not continue it
        else:
            server.start()
    running.wait_ready()


@pytest.fixture
def cluster_of_three(three: Ensemble, servers: Servers) -> Cluster:
    """Its broker's session outlives every fault of these tests: the members' behaviour is tested, not the brokers'."""
    config = {"zookeeper.session.timeout.ms": 30_000}
    return servers.shared("three", lambda name: servers.cluster(name, zookeeper=three, config=config))
