"""A member of ours nudges original members that gave up."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from kzconsumer.group import reconcile_rules
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import add_partitions
from tests.core.original.group import PARTITIONS, STALL, mixed_group, our_member
from tests.support.extent import only_nightly
from tests.support.flow import Deliveries
from tests.support.ownership import by_range
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until


@only_nightly  # when, whom and how often: plain/test_nudge.py, plain/test_group_notices.py
async def test_ours_nudges_an_original_that_gave_up(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition is blocked for longer than the original retries: it owns nothing. A member of ours nudges it."""
    monkeypatch.setattr(reconcile_rules, "PATIENCE", 3.0)
    async with mixed_group(servers, cluster, unique) as group:
        with group.original(
            tmp_path, "x", from_beginning=True, rebalance_max_retries=3, rebalance_backoff_ms=500
        ) as original:
            await group.settled("original alone", by_range(unique, PARTITIONS, [original.thread()]))
            async with (
                our_member(cluster, unique, {unique: 1}, "a") as first,
                our_member(cluster, unique, {unique: 1}, "b") as second,
                session(cluster.connect) as other,
            ):
                threads = [first.thread(), second.thread(), original.thread()]
                await group.settled("ours join", by_range(unique, PARTITIONS, threads))
                await anyio.sleep(reconcile_rules.LOOK_INTERVAL)  # they look: nobody waits for a partition
                block = f"/consumers/{unique}/owners/{unique}/{PARTITIONS}"
                blocked = time.monotonic()
                await other.create(block, b"somebody-0", ephemeral=True)
                await add_partitions(cluster.connect, unique, 12)
                group.ownership.topics[unique] = group.flow.partitions = 12
                await until(lambda: original.logged("can't rebalance after 3 retries"))
                tried = original.logged("begin rebalancing consumer")
                await other.delete(block, -1)
                since = time.monotonic()
                await group.settled("nudged", by_range(unique, 12, threads), since=since)
                assert since - blocked + group.figures["nudged, s"] > 3.0
                assert group.figures["nudged, s"] < 3.0 + 2 * reconcile_rules.LOOK_INTERVAL + STALL
                assert original.logged("begin rebalancing consumer") == tried + 1
                members = Deliveries(
                    **{original.consumer: original.delivered, "first": first.delivered, "second": second.delivered}
                )
                await group.drained(members)
            group.check_ours(first, second)
            group.check_doubled(members, original)
