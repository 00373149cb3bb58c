"""Partitions without leader: logged if that lasts, not if they have just been created."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from kzconsumer_sandbox.servers.topic_creation import add_partitions, create_topic
from tests.support.extent import only_nightly
from tests.support.members import reader, settings
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import until


@only_nightly  # tests/core/plain/test_leader_finder.py; real brokers: tests/spark/servers/test_source_leaders.py
async def test_only_a_partition_that_stays_without_leader_is_logged(
    servers: Servers, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two brokers, each leading every other partition; the other broker has no replica."""
    cluster = servers.cluster(unique, brokers=2)
    await create_topic(cluster.connect, unique, 2)
    async with reader(settings(cluster.connect, unique), {unique: 1}) as member:
        for partitions in range(4, 22, 2):
            await add_partitions(cluster.connect, unique, partitions)
            await until(lambda: len(member.owned) == partitions)  # noqa: B023
        assert "partition has no leader" not in "".join(capfd.readouterr())
        await anyio.to_thread.run_sync(cluster.brokers[2].kill)
        output: list[str] = []
        with anyio.fail_after(60):
            while not output:
                await anyio.sleep(0.1)
                output += [
                    line for line in "".join(capfd.readouterr()).splitlines() if "partition has no leader" in line
                ]
        assert all(f"topic={unique}" in line for line in output)
    await anyio.to_thread.run_sync(cluster.kill)
