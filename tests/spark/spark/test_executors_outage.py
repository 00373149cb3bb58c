"""Brokers that are away for longer than all attempts of a batch: a member whose executors fetch waits for them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from urllib.request import urlopen

import anyio
import pytest

from kzconsumer_sandbox.servers.configuration import HOST, free_port
from kzconsumer_sandbox.servers.kafka_servers import BrokerServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import NIGHTLY
from tests.support.members import daemon, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.spark_functions import FUNCTION_DIRECTORY
from tests.support.zookeeper_sessions import until

LIMIT = 120.0
ATTEMPTS, REQUEST_TIMEOUT, BACKOFF = 3, 0.5, 0.1

pytestmark = pytest.mark.timeout(400)


def tables(port: int, folder: Path) -> str:
    return (
        f'[fetch]\nrequest_timeout = "{REQUEST_TIMEOUT}s"\n[status]\nlisten = "{HOST}:{port}"\n'
        '[sink]\nplugin = "spark"\n[sink.options]\ndestination = "function"\nmaster = "local[1]"\n'
        f'function = "tests.support.spark_functions:hide"\nattempts = {ATTEMPTS}\nretry_backoff = "{BACKOFF}s"\n'
        f'scratch = "{folder}"\nstart_timeout = "240s"\n[sink.options.conf]\n"spark.driver.memory" = "512m"\n'
    )


def calls(folder: Path) -> int:
    file = folder / "calls"
    return len(file.read_text().splitlines()) if file.exists() else 0


async def broken_off(broker: BrokerServer, folder: Path) -> None:
    """The broker ends after the next batch has begun, and before it is fetched."""
    before = calls(folder)
    (folder / "stall").touch()
    await until(lambda: calls(folder) > before, LIMIT)
    await asyncio.to_thread(broker.kill)
    (folder / "stall").unlink()


def waits(port: int) -> str | None:
    """What the status says of it."""
    with urlopen(f"http://{HOST}:{port}/api/v1/batches") as answer:
        said: str | None = json.load(answer)["sink"].get("waits_for_brokers")
    return said


@pytest.mark.skipif(NIGHTLY is None, reason="make nightly: a Spark of its own, and two outages")
async def test_a_batch_waits_for_brokers_beyond_its_attempts(
    servers: Servers, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is the same outage, if the function does not let its reason out: it uses up the attempts."""
    cluster = servers.cluster(unique)
    (broker,) = cluster.brokers.values()
    await create_topic(cluster.connect, unique, 1)
    monkeypatch.setenv(FUNCTION_DIRECTORY, str(tmp_path))
    port = free_port()

    async def send(records: int) -> None:
        sent = [Sent(0, None, b"v")] * records
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)

    async def committed() -> int | None:
        return (await stored_offsets(cluster.connect, unique, unique, 1))[0]

    (tmp_path / "stall").touch()
    with daemon(tmp_path / "member", cluster.connect, unique, {unique: 1}, tables(port, tmp_path)) as member:
        await send(10)
        await broken_off(broker, tmp_path)
        began, before = time.monotonic(), calls(tmp_path)
        await until(lambda: calls(tmp_path) > before + ATTEMPTS, LIMIT)
        assert time.monotonic() - began > ATTEMPTS * (REQUEST_TIMEOUT + BACKOFF)
        said = await asyncio.to_thread(waits, port)
        assert said is not None
        assert "none is up" in said or str(broker.port) in said
        assert {event["level"] for event in member.events("brokers unreachable, batch waits")} == {"warning"}
        broker.wait_startable()
        broker.start()
        await asyncio.to_thread(broker.wait_ready)
        with anyio.fail_after(LIMIT):
            while await committed() != 10:
                await anyio.sleep(0.05)
        (seen,) = tmp_path.glob("seen-*")
        assert [row["offset"] for row in json.loads(seen.read_text())["rows"]] == list(range(10))
        assert await asyncio.to_thread(waits, port) is None
        assert not member.events("spark batch failed")

        (tmp_path / "hide").touch()
        (tmp_path / "stall").touch()
        await send(5)
        await broken_off(broker, tmp_path)
        assert await member.ended(LIMIT) == 1
        assert "in 3 attempts: ValueError: the reason is hidden" in member.err.read_text()
        assert len(member.events("spark batch failed")) == ATTEMPTS
    assert await committed() == 10
