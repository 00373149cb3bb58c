"""Original members with a static subscription and several streams: the order of the threads of both kinds."""

from __future__ import annotations

import time
from pathlib import Path

import anyio

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.readiness import create_topic
from tests.core.original.group import mixed_group, our_member
from tests.support.extent import only_nightly
from tests.support.flow import Deliveries
from tests.support.members import reader, settings
from tests.support.original import REPLAY_GROUP, Record, replaying_consumer
from tests.support.ownership import by_range
from tests.support.servers import Servers
from tests.support.static_original import static_original


@only_nightly  # with round robin: test_round_robin.py
async def test_two_streams_of_an_original_and_three_of_ours(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """Five threads over twelve partitions: 3, 3, 2, 2, 2 by the sorted thread ids."""
    copy = f"{unique}-copy"
    await create_topic(cluster.connect, copy, 1)
    async with (
        mixed_group(servers, cluster, REPLAY_GROUP, topic=unique, partitions=12) as group,
        reader(settings(cluster.connect, copy), {copy: 1}) as copies,
    ):

        def replayed() -> list[Record]:
            return [Record.parse((message.value or b"").decode()) for message in copies.messages]

        with replaying_consumer(servers, cluster, unique, copy, 2, tmp_path) as original:
            while len(set(group.ownership.owners.values())) != 2:
                assert original.process.poll() is None
                await anyio.sleep(0.02)
            theirs = set(group.ownership.owners.values())
            await group.settled("original alone", by_range(unique, 12, theirs))
            since = time.monotonic()
            # `-` sorts before any host name: ours come first, and the original has to move.
            async with our_member(cluster, REPLAY_GROUP, {unique: 3}, "-") as ours:
                threads = [*theirs, *map(ours.thread, range(3))]
                await group.settled("ours joins", by_range(unique, 12, threads), since=since)
                await group.delivering(replayed, ours.delivered)
                since = time.monotonic()
            await group.settled("ours leaves", by_range(unique, 12, theirs), since=since)
            members = Deliveries(**{original.consumer: replayed, "ours": ours.delivered})
            await group.drained(members)
            group.check_ours(ours)
            group.check_doubled(members, original)


async def test_thread_ids_sort_as_text(servers: Servers, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """Eleven streams of ours, `-10` before `-2`, joined by three of an original, which then leaves."""
    async with (
        mixed_group(servers, cluster, unique, partitions=20) as group,
        our_member(cluster, unique, {unique: 11}, "m") as ours,
    ):
        mine = [ours.thread(n) for n in range(11)]
        await group.settled("ours alone", by_range(unique, 20, mine))
        with static_original(servers, cluster, unique, unique, 3, tmp_path / "a", consumer="a") as original:
            await original.join()
            threads = [*mine, *map(original.thread, range(3))]
            await group.settled("original joins", by_range(unique, 20, threads))
            await group.delivering(original.delivered, ours.delivered)
            since = time.monotonic()
            await original.leave()
            await group.settled("original leaves", by_range(unique, 20, mine), since=since)
        members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered})
        await group.drained(members)
        group.check_ours(ours)
        group.check_doubled(members, original)
