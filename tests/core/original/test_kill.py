"""kill -9 of one kind of member: the other kind takes over when the session has expired."""

from __future__ import annotations

import time
from pathlib import Path

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.core.original.group import PARTITIONS, STALL, mixed_group, our_member
from tests.support.extent import only_nightly
from tests.support.flow import Deliveries
from tests.support.members import Daemon
from tests.support.original import Record
from tests.support.ownership import Seen, by_range
from tests.support.servers import Servers

SESSION = 4.0
TAKEOVER = SESSION + 0.5 + STALL
"""The session, one tick of the test ZooKeeper, and a second for everything else."""


async def test_ours_takes_over_from_a_killed_original(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    async with mixed_group(servers, cluster, unique) as group:
        with group.original(
            tmp_path,
            "a",
            from_beginning=True,
            auto_commit_interval_ms=500,
            zookeeper_session_timeout_ms=int(SESSION * 1000),
        ) as original:
            await group.settled("original alone", by_range(unique, PARTITIONS, [original.thread()]))
            async with our_member(cluster, unique, {unique: 1}, "m") as ours:
                since = time.monotonic()
                shared = by_range(unique, PARTITIONS, [original.thread(), ours.thread()])
                await group.settled("ours joins", shared, since=since)
                await group.delivering(original.delivered, ours.delivered)
                original.kill()
                since = time.monotonic()
                everything = by_range(unique, PARTITIONS, [ours.thread()])
                await group.settled("takeover", everything, since=since)
                assert group.figures["takeover, s"] < TAKEOVER
                members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered})
                # It counts a record as consumed before handing it to the application: the one in hand may be lost.
                lost = await group.drained(members, may_lack=1)
        last = {record.partition: record.offset for record in original.delivered()}
        begun = _begun(group.ownership.history, ours.thread())
        assert all(record.offset == begun[record.partition] - 1 == last[record.partition] + 1 for record in lost)
        group.check_ours(ours)
        for record in group.check_doubled(members, original):
            assert begun[record.partition] <= record.offset <= last[record.partition]


# A killed member of ours: core/servers/test_group.py; an original after one of ours: test_join_and_leave.py.
@only_nightly
async def test_an_original_takes_over_from_ours_when_killed(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    async with mixed_group(servers, cluster, unique) as group:
        ours = Daemon(tmp_path / "ours", cluster.connect, unique, {unique: 1}, "", "smallest")
        text = ours.config.read_text().replace('"6s"', f'"{SESSION:.0f}s"')
        ours.config.write_text(text.replace("[group]\n", '[group]\nconsumer_id = "a"\n'))
        ours.start()
        thread = f"{unique}_a-0"

        def our_records() -> list[Record]:
            return [Record(each["topic"], each["partition"], each["offset"]) for each in ours.records()]

        assert ours.process is not None
        try:
            await group.settled("ours alone", by_range(unique, PARTITIONS, [thread]))
            with group.original(tmp_path, "m") as original:
                since = await group.registered(original)
                await group.settled(
                    "original joins", by_range(unique, PARTITIONS, [thread, original.thread()]), since=since
                )
                await group.delivering(original.delivered, our_records)
                ours.process.kill()
                since = time.monotonic()
                everything = by_range(unique, PARTITIONS, [original.thread()])
                await group.settled("takeover", everything, since=since)
                assert group.figures["takeover, s"] < TAKEOVER
                members = Deliveries(**{original.consumer: original.delivered, "ours": our_records})
                await group.drained(members)
                begun = {partition: starts[-1] for (_, partition), starts in original.starts().items()}
                last = {record.partition: record.offset for record in our_records()}
                # Records that ours wrote but could not commit are redelivered, from the stored offset, and nothing
                # else.
                for record in group.check_doubled(members, original):
                    assert begun[record.partition] <= record.offset <= last[record.partition]
        finally:
            if ours.process.poll() is None:
                ours.process.kill()
            ours.process.wait()


def _begun(history: dict[tuple[str, int], list[Seen]], thread: str) -> dict[int, int]:
    """Partition -> the stored offset with which that thread began its last ownership."""
    begun = {}
    for (_, partition), seen in history.items():
        for before, after in zip([None, *seen], seen, strict=False):
            if after.owner == thread and (before is None or before.owner != thread):
                begun[partition] = after.stored or 0
    return begun
