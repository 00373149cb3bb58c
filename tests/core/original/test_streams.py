"""Original members with a static subscription and several streams: the order of the threads of both kinds."""

from __future__ import annotations

import time
from pathlib import Path

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.core.original.group import mixed_group, our_member
from tests.support.extent import only_nightly
from tests.support.flow import Deliveries
from tests.support.ownership import by_range
from tests.support.servers import Servers
from tests.support.static_original import static_original


@only_nightly  # test_original_assignors.py: members with 12 streams; test_round_robin.py: an original with two
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
