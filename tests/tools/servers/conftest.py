"""The command line on the shared cluster, its nodes, and a topic whose records are a second apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session

NEW_YEAR = 1_767_225_600_000
EACH = 10


@pytest.fixture(scope="session")
def filled(cluster: Cluster) -> tuple[Cluster, str]:
    """A topic with 4 partitions of 10 records, a second apart: the fifth is in the new year 2026."""
    topic = "offset-commands"
    anyio.run(create_topic, cluster.connect, topic, 4)
    records = [
        Sent(partition, None, b"x", timestamp=NEW_YEAR + (n - 5) * 1000) for partition in range(4) for n in range(EACH)
    ]
    produce(cluster.bootstrap, cluster.version, topic, records)
    return cluster, topic


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Undo files are written here."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
async def kzconsumer(cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys, "--zookeeper", cluster.connect)


@pytest.fixture
async def zookeeper(cluster: Cluster) -> AsyncIterator[ZooKeeperSession]:
    async with session(cluster.connect) as opened:
        yield opened
