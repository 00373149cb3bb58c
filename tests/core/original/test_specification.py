"""Behaviour of the original consumer that we rely on and that was only inferred from its source or observed once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import anyio
import pytest

from kzconsumer.registry.group_records import decode_registration, encode_registration
from kzconsumer.zookeeper.operations import Create, Delete
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import add_partitions, create_topic
from tests.core.original.group import PARTITIONS, mixed_group, our_member
from tests.support.extent import extent, only_nightly
from tests.support.flow import Deliveries
from tests.support.original import ORIGINALS, REPLAY_GROUP, console_consumer, replaying_consumer
from tests.support.ownership import by_range, watched
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until


@only_nightly  # when ours nudges: plain/test_nudge.py
@pytest.mark.parametrize("version", ORIGINALS)
async def test_an_original_that_gave_up_stays_registered_until_it_is_nudged(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, version: str
) -> None:
    """Blocked on one partition, it releases all; it is not notified when the block ends."""
    async with mixed_group(servers, cluster, unique) as group:
        with group.original(
            tmp_path, "m", version=version, from_beginning=True, rebalance_max_retries=1, rebalance_backoff_ms=100
        ) as original:
            await group.settled("original alone", by_range(unique, PARTITIONS, [original.thread()]))
            async with our_member(cluster, unique, {unique: 1}, "a") as ours, session(cluster.connect) as other:
                threads = [ours.thread(), original.thread()]
                await group.settled("ours joins", by_range(unique, PARTITIONS, threads))
                block = f"/consumers/{unique}/owners/{unique}/{PARTITIONS}"
                await other.create(block, b"somebody-0", ephemeral=True)
                await add_partitions(cluster.connect, unique, PARTITIONS + 1)
                group.ownership.topics[unique] = group.flow.partitions = PARTITIONS + 1
                await until(lambda: original.logged("can't rebalance after 1 retries"))
                await other.delete(block, -1)
                whole = by_range(unique, PARTITIONS + 1, threads)
                half = {partition: owner for partition, owner in whole.items() if owner == ours.thread()}
                await group.settled("gave up", half, verified=False)
                await anyio.sleep(1.0)
                assert group.ownership.owners == half
                assert original.process.poll() is None
                assert await other.exists(f"/consumers/{unique}/ids/{original.consumer}")
                poke = f"/consumers/{unique}/ids/{unique}_a-poke-1"
                since = time.monotonic()
                await other.multi([Create(poke, encode_registration({}, 0, "0"), ephemeral=True), Delete(poke, 0)])
                await group.settled("poke", whole, since=since)
                await until(lambda: group.flow.sent[PARTITIONS])
                members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered})
                await group.drained(members)
            group.check_ours(ours)
            group.check_doubled(members, original)


@only_nightly  # none of ours takes part
async def test_a_static_original_picks_up_a_topic_made_later(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """The data watch on a topic that does not exist is triggered when it is created."""
    copy = f"{unique}-copy"
    await create_topic(cluster.connect, copy, 1)
    async with watched(cluster.connect, REPLAY_GROUP, {unique: 4}) as ownership:
        with replaying_consumer(servers, cluster, unique, copy, 2, tmp_path) as original:
            await until(lambda: original.logged("end rebalancing consumer"), 20)
            assert not ownership.owners
            await create_topic(cluster.connect, unique, 4)
            await until(lambda: len(ownership.owners) == 4)
            assert len(set(ownership.owners.values())) == 2


@pytest.mark.parametrize(("version", "shares"), extent([("1.1.1", False)], [("0.10.2.2", True), ("1.1.1", False)]))
async def test_a_backslash_in_an_originals_white_list(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, version: str, shares: bool
) -> None:
    r"""1.1 stores `\.` escaped twice and reads it back so: it does not own what its list names, as we expect."""
    dotted = f"{unique}.dotted"
    await create_topic(cluster.connect, dotted, 4)
    async with mixed_group(servers, cluster, unique) as group:
        white_list = rf"{unique}|{unique}\.dotted"
        with console_consumer(
            servers, cluster, unique, white_list, tmp_path / "m", consumer="m", version=version, from_beginning=True
        ) as original:
            group.ownership.topics[dotted] = 4
            await group.registered(original)
            node = await group.ownership.zookeeper.get(f"/consumers/{unique}/ids/{original.consumer}")
            (stored,) = decode_registration(node.data).subscription
            assert stored == (white_list if shares else white_list.replace("\\", "\\\\"))
            async with our_member(cluster, unique, {unique: 1, dotted: 1}, "a") as ours:
                threads = [original.thread(), ours.thread()]
                dotted_threads = threads if shares else [ours.thread()]
                owners = by_range(unique, PARTITIONS, threads) | by_range(dotted, 4, dotted_threads)
                await group.settled("ours joins", owners)


async def test_an_original_deletes_an_owner_node_that_has_become_ours(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """Its owner nodes are deleted by hand and ours claims them; it releases what it assumes to own, by path alone."""
    async with mixed_group(servers, cluster, unique) as group:
        with group.original(tmp_path, "m", from_beginning=True, zookeeper_session_timeout_ms=20_000) as original:
            await group.settled("original alone", by_range(unique, PARTITIONS, [original.thread()]))
            zookeeper = group.ownership.zookeeper
            paths = [f"/consumers/{unique}/owners/{unique}/{number}" for number in range(PARTITIONS)]
            original.signal(signal.SIGSTOP)
            for path in paths:
                await zookeeper.delete(path, -1)
            async with our_member(cluster, unique, {unique: 1}, "a") as ours:
                shared = by_range(unique, PARTITIONS, [original.thread(), ours.thread()])
                half = {partition: owner for partition, owner in shared.items() if owner == ours.thread()}
                await group.settled("ours alone", half, verified=False)
                before = [await zookeeper.get(path) for path in paths[: len(half)]]
                original.signal(signal.SIGCONT)
                await group.settled("original wakes", shared)
                after = [await zookeeper.get(path) for path in paths[: len(half)]]
                # The hazard itself: these are not the nodes that we had created.
                assert all(new.stat.czxid != old.stat.czxid for old, new in zip(before, after, strict=True))
                # What ours had delivered but could not store any more was redelivered to ours: at least once, none
                # lost.
                await group.drained(Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered}))


@only_nightly  # one that wakes when ours has its partitions: the test above
async def test_an_original_suspended_beyond_its_session(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """It wakes as a zombie, still delivers and writes its old offsets; records are redelivered, but none is lost."""
    async with mixed_group(servers, cluster, unique) as group:
        with group.original(
            tmp_path, "a", from_beginning=True, zookeeper_session_timeout_ms=3000, auto_commit_interval_ms=200
        ) as original:
            await group.settled("original alone", by_range(unique, PARTITIONS, [original.thread()]))
            async with our_member(cluster, unique, {unique: 1}, "m") as ours:
                shared = by_range(unique, PARTITIONS, [original.thread(), ours.thread()])
                await group.settled("ours joins", shared)
                await group.delivering(original.delivered, ours.delivered)
                original.signal(signal.SIGSTOP)
                since = time.monotonic()
                await group.settled("takeover", by_range(unique, PARTITIONS, [ours.thread()]), since=since)
                original.signal(signal.SIGCONT)
                since = time.monotonic()
                await group.settled("original is back", shared, since=since)
                members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered})
                # Its last offsets were stored before the record in hand was delivered: at most that record is lost.
                await group.drained(members, may_lack=1)
            # It does not check the owner either: it may overwrite what we stored when we released the partitions.
            group.check_ours(ours, others_wrote_offsets=True)
            group.check_doubled(members, original)
