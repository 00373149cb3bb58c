"""One group of an original consumer, a daemon and a streaming query: members join, are killed and leave.

Every record is delivered. One is delivered twice only by the rules of the kinds: what a killed daemon had written and
not committed, what a query had in a batch that outlasted a release, and what an original hands out after a release.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kzconsumer.group.claim_and_release import REVOKE_DEADLINE_WITH_ORIGINALS
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.core.original.group import PARTITIONS, mixed_group
from tests.support.extent import only_nightly
from tests.support.flow import Deliveries
from tests.support.members import Daemon, stored_offsets
from tests.support.original import Original, Record, console_consumer
from tests.support.ownership import by_range
from tests.support.servers import Servers
from tests.support.source_query import LIMIT, Written, reader_processes, source, start

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("default"), only_nightly]


class TimedRows(Written):
    """Also knows which batches took so long that a partition may have been released meanwhile."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, lambda number: self._times.append((number, time.monotonic())))
        self._times: list[tuple[int, float]] = []

    def records(self) -> list[Record]:
        return [Record(topic, partition, offset) for topic, partition, offset, _ in self.all]

    def of_long_batches(self) -> set[Record]:
        long = [
            number
            for (_, before), (number, _), (_, after) in zip(self._times, self._times[1:], self._times[2:], strict=False)
            if after - before > REVOKE_DEADLINE_WITH_ORIGINALS
        ]
        return {Record(topic, partition, offset) for n in long for topic, partition, offset, _ in self.rows(n)}


async def test_an_original_a_daemon_and_a_query_share_a_group(
    servers: Servers, cluster: Cluster, spark: SparkSession, unique: str, tmp_path: Path
) -> None:
    file = tmp_path / "query.toml"
    file.write_text(
        f'zookeeper = {{ connect = "{cluster.connect}", session_timeout = "6s" }}\n'
        f'group = {{ id = "{unique}", consumer_id = "q" }}\nsubscription.topics.{unique} = 1\n'
    )
    frame = source(spark, "", "", config=str(file), maxTriggerDelay="200ms")
    rows = TimedRows(tmp_path)
    ours = Daemon(tmp_path / "d", cluster.connect, unique, {unique: 1}, "", "smallest")
    ours.config.write_text(ours.config.read_text().replace("[group]\n", '[group]\nconsumer_id = "d"\n'))

    def written() -> list[Record]:
        return [Record(each["topic"], each["partition"], each["offset"]) for each in ours.records()]

    def owned_by(*names: str) -> dict[tuple[str, int], str]:
        return by_range(unique, PARTITIONS, [f"{unique}_{name}-0" for name in names])

    def original(name: str) -> AbstractContextManager[Original]:
        return console_consumer(
            servers, cluster, unique, unique, tmp_path / name, consumer=name, auto_commit_interval_ms=500
        )

    async with mixed_group(servers, cluster, unique) as group:
        settled = partial(group.settled, limit=float(LIMIT))
        with ExitStack() as exits:
            ours.start()
            exits.callback(ours.kill)
            await settled("the daemon alone", owned_by("d"))
            a = exits.enter_context(original("a"))
            await settled("an original joins", owned_by("a", "d"))
            query = await asyncio.to_thread(start, frame, tmp_path, rows)
            exits.callback(lambda: query.stop())
            await settled("a query joins", owned_by("a", "d", "q"))
            await group.delivering(a.delivered, written, rows.records, limit=LIMIT)

            ours.kill()
            stored = {partition: seen[-1].stored or 0 for partition, seen in group.ownership.history.items()}
            uncommitted = {each for each in written() if each.offset >= stored[each.topic, each.partition]}
            await settled("the daemon was killed", owned_by("a", "q"))
            ours.start()
            await settled("the daemon is back", owned_by("a", "d", "q"))
            await group.delivering(a.delivered, written, rows.records, limit=LIMIT)

            (reader,) = reader_processes(spark)
            os.kill(reader, signal.SIGKILL)
            with pytest.raises(StreamingQueryException):
                await asyncio.to_thread(query.awaitTermination, LIMIT)
            query = await asyncio.to_thread(start, frame, tmp_path, rows)
            await settled("the query is back", owned_by("a", "d", "q"))
            await group.delivering(a.delivered, written, rows.records, limit=LIMIT)

            a.kill()
            b = exits.enter_context(original("b"))
            await settled("another original in place of the killed one", owned_by("b", "d", "q"))
            await group.delivering(b.delivered, written, rows.records, limit=LIMIT)

            ours.signal(signal.SIGTERM)
            assert await ours.ended() == 0
            await settled("the daemon has left", owned_by("b", "q"))
            await group.delivering(b.delivered, rows.records, limit=LIMIT)
            members = Deliveries(a=a.delivered, b=b.delivered, daemon=written, query=rows.records)
            # An original counts a record as consumed before it hands it out: the one in hand may be lost by a kill.
            lost = await group.drained(members, limit=LIMIT, may_lack=1)
            with anyio.fail_after(LIMIT):
                ends = [group.flow.sent[number] for number in range(PARTITIONS)]
                while await stored_offsets(cluster.connect, unique, unique, PARTITIONS) != ends:
                    await anyio.sleep(0.1)
        last = {record.partition: record.offset for record in a.delivered()}
        assert all(record.offset == last[record.partition] + 1 for record in lost)
        explained = uncommitted | rows.of_long_batches()
        doubled = members.doubled()
        ours_alone = {record: by for record, by in doubled.items() if not {"a", "b"}.intersection(by)}
        group.figures["twice by the original's rules"] = len(doubled) - len(ours_alone)
        group.figures["twice after the kill of the daemon, or in a long batch"] = len(ours_alone)
        assert {record: by for record, by in ours_alone.items() if record not in explained} == {}
