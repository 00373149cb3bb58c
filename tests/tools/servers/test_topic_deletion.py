"""`topics delete` on brokers of 0.8.2 that do not delete topics, which is their default."""

from __future__ import annotations

import time

import pytest

from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_tools.commands import topics_commands
from tests.support.command_line import CommandLine
from tests.support.servers import Servers


async def test_a_request_that_is_kept_for_ever_ends_with_a_line(
    servers: Servers, unique: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = servers.cluster(unique, "0.8.2.2", config={"delete.topic.enable": "false"})
    try:
        await create_topic(cluster.connect, "kept", 1)
        kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
        monkeypatch.setattr(topics_commands, "WAIT_OF_0_8", 1)
        monkeypatch.setattr(topics_commands, "WAIT", 40)
        began = time.monotonic()
        done = await kzconsumer("topics", "delete", "kept", "--execute")
        assert time.monotonic() - began < 30
        assert done.status == 1
        assert "With delete.topic.enable=false (the default up to 0.11), it stays pending." in done.out
    finally:
        cluster.kill()
