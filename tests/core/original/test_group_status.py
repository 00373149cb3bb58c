"""The status of a group of both kinds: an original member's partitions are shown, and it ignores our status address."""

from __future__ import annotations

import asyncio
from pathlib import Path

import kzconsumer
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.servers.test_status import asking, reached
from tests.support.extent import only_nightly
from tests.support.members import daemon, sessions_of, settings
from tests.support.original import console_consumer
from tests.support.producing import Sent, produce
from tests.support.servers import Servers


@only_nightly  # the group's partitions: tests/core/servers/test_status.py; an original's records: test_kill.py
async def test_partitions_of_an_original_member(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, 6)
    records = [Sent(n % 6, None, b"%d" % n) for n in range(60)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    original_id = f"{unique}_original"
    with (
        daemon(tmp_path, cluster.connect, unique, {unique: 1}, '[status]\nlisten = "127.0.0.1:0"\n') as member,
        console_consumer(
            servers, cluster, unique, unique, tmp_path / "original", auto_commit_interval_ms=500
        ) as original,
    ):
        async with asking(member) as ask, kzconsumer.connect(settings(cluster.connect, unique)) as linked:
            sessions_of(linked).published = "orders-1.example:9308"
            await linked.create_message_streams({unique: 1})

            async def shared() -> bool:
                assert original.process.poll() is None
                owners = [each["owner"] for each in (await ask.json("/api/v1/group"))["partitions"]]
                return None not in owners and sorted(map(owners.count, set(owners))) == [2, 2, 2]

            await reached(shared, 60)
            more = [Sent(n, None, b"more") for n in range(6)]
            await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, more)

            async def committed() -> bool:
                group = (await ask.json("/api/v1/group"))["partitions"]
                theirs = [each for each in group if each["owner"] == f"{original_id}-0"]
                return [(each["end"], each["committed"]) for each in theirs] == [(11, 11)] * 2

            await reached(committed, 60)
            members = {each["id"]: each for each in (await ask.json("/api/v1/members"))["members"]}
            assert not members[original_id]["kzconsumer"]
            assert members[linked.consumer]["status"] == "orders-1.example:9308"
            assert {each["status"] for each in members.values()} == {"", "orders-1.example:9308"}
