"""Three ZooKeeper servers and a Kafka cluster on them, for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kzconsumer_sandbox.servers.kafka_servers import Cluster
    from tests.support.ensemble import Ensemble
    from tests.support.servers import Servers


@pytest.fixture(scope="module")
def running(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    from kzconsumer_sandbox.servers.jars import NEWEST, resolve_jars
    from tests.support.ensemble import ensemble

    with ensemble(tmp_path_factory.mktemp("ensemble"), servers.java, resolve_jars(NEWEST.jars)) as three:
        yield three


@pytest.fixture
def three(running: Ensemble) -> Iterator[Ensemble]:
    """The ensemble, whole before and after."""
    running.wait_ready()
    yield running
    for server in running.servers:
        running.mend(server)
        if not server.alive:
            server.start()
    running.wait_ready()


@pytest.fixture(scope="module")
def cluster_of_three(
    running: Ensemble, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Its broker's session outlives every fault of these tests: the members' behaviour is tested, not the brokers'."""
    from kzconsumer_sandbox.servers.jars import NEWEST, resolve_jars
    from kzconsumer_sandbox.servers.kafka_servers import Cluster

    cluster = Cluster(
        running.connect,
        NEWEST,
        tmp_path_factory.mktemp("cluster-of-three"),
        servers.java,
        resolve_jars(NEWEST.jars),
        chroot="/lease",
        heap="192m",
        config={"zookeeper.session.timeout.ms": 30_000},
    )
    cluster.start()
    cluster.wait_ready()
    yield cluster
    cluster.kill()
