"""Partitions are added and topics created while Kafka's own consumer and ours share a group."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import add_partitions, create_topic
from tests.core.original.group import PARTITIONS, mixed_group, our_member
from tests.support.extent import only_nightly
from tests.support.flow import Deliveries, flow
from tests.support.original import console_consumer
from tests.support.ownership import by_range
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import until

_ORIGINAL_LOWER = pytest.param(("a", "m"), id="original-is-lower")
_OURS_LOWER = pytest.param(("m", "a"), id="ours-is-lower")


# A topic that appears, of which both get some: the test below. More partitions: plain/test_group_machine.py.
@only_nightly
@pytest.mark.parametrize("names", [_ORIGINAL_LOWER, _OURS_LOWER])
async def test_added_partitions_are_distributed(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, names: tuple[str, str]
) -> None:
    """The lower of the two gets some of the other's partitions, and the other one the new ones."""
    async with mixed_group(servers, cluster, unique) as group:
        with console_consumer(
            servers, cluster, unique, unique, tmp_path / "o", consumer=names[0], from_beginning=True
        ) as original:
            await group.settled("original alone", by_range(unique, PARTITIONS, [original.thread()]))
            async with our_member(cluster, unique, {unique: 1}, names[1]) as ours:
                threads = [original.thread(), ours.thread()]
                await group.settled("ours joins", by_range(unique, PARTITIONS, threads))
                since = time.monotonic()
                await add_partitions(cluster.connect, unique, 12)
                group.ownership.topics[unique] = group.flow.partitions = 12
                await group.settled("partitions added", by_range(unique, 12, threads), since=since)
                await until(lambda: len(group.flow.sent) == 12)
                members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered})
                await group.drained(members)
            group.check_ours(ours)
            group.check_doubled(members, original)


async def test_topics_created_that_match_an_originals_white_list(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """One that only the white list matches, which ours must not claim, and one subscribed to before it exists."""
    theirs, both = f"{unique}-theirs", f"{unique}-both"
    async with mixed_group(servers, cluster, unique) as group:
        with console_consumer(
            servers, cluster, unique, f"{unique}.*", tmp_path / "m", consumer="m", from_beginning=True
        ) as original:
            await group.settled("original alone", by_range(unique, PARTITIONS, [original.thread()]))
            async with our_member(cluster, unique, {unique: 1, both: 2}, "a") as ours:
                owners = by_range(unique, PARTITIONS, [original.thread(), ours.thread()])
                await group.settled("ours joins", owners, verified=False)
                since = time.monotonic()
                await create_topic(cluster.connect, theirs, 2)
                group.ownership.topics[theirs] = 2
                owners |= by_range(theirs, 2, [original.thread()])
                await group.settled("their topic", owners, since=since, verified=False)
                since = time.monotonic()
                await create_topic(cluster.connect, both, 6)
                group.ownership.topics[both] = 6
                owners |= by_range(both, 6, [original.thread(), ours.thread(0), ours.thread(1)])
                await group.settled("a topic of both", owners, since=since)
                with flow(cluster, theirs, 2) as group.flows[theirs], flow(cluster, both, 6) as group.flows[both]:
                    members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered})
                    await group.delivering(original.delivered, ours.delivered)
                    await group.drained(members)
            group.check_ours(ours)
            group.check_doubled(members, original)
            assert {record.topic for record in ours.delivered()} == {unique, both}
            assert {record.topic for record in original.delivered()} == {unique, both, theirs}
