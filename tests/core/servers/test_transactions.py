"""Transactions on real brokers: with read committed, a member delivers committed records and skips all others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer import Message
from kzconsumer.fetcher import response_handler
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import member, stored_offset, take
from tests.support.extent import extent
from tests.support.producing import Headers, Sent, produce
from tests.support.transactions import ABORT, COMMIT, History
from tests.support.zookeeper_sessions import session, until

ClusterOf = Callable[[str], Cluster]

CODECS = {
    "1.1.1": ("none", "gzip", "snappy", "lz4"),
    "2.8.2": ("none", "gzip", "snappy", "lz4", "zstd"),
    "3.9.1": ("none", "gzip", "snappy", "lz4", "zstd"),
}
VERSIONS = [version for version in CODECS if version not in extent(("1.1.1", "2.8.2"), ())]
# Records as old as their markers: a broker begins a new segment at a record a week younger than the segment's first,
# and no fetch crosses the end of a segment.
NOW = int(time.time() * 1000)


def some(label: str, count: int = 3) -> list[Sent]:
    """Records of one batch, compressible, one of them with a null key and headers."""
    headers: Headers = (("trace", b"\x00\xff"), ("none", None))
    return [
        Sent(
            0,
            None if number == 1 else b"%s-%d" % (label.encode(), number),
            label.encode() * 50,
            headers if number == 1 else (),
            NOW + number,
        )
        for number in range(count)
    ]


def steps() -> list[tuple[str, list[Sent] | str]]:
    """Two producers and one without transactions: interleaved, ended either way, and one after the other."""
    return [
        ("", some("plain")),
        ("a", some("a1")),
        ("b", some("b1")),
        ("a", some("a1 again")),
        ("", some("plain between")),
        ("b", COMMIT),
        ("b", some("b2")),
        ("a", ABORT),
        ("a", some("a2")),
        ("b", some("b2 again", 20)),
        ("a", COMMIT),
        ("a", some("a3", 20)),
        ("b", ABORT),
        ("a", ABORT),
        ("a", some("a4")),
        ("a", ABORT),
        ("b", some("b3")),
        ("b", COMMIT),
        ("", some("plain at the end", 1)),
    ]


def expected(topic: str, history: History, *, committed: bool = False) -> list[Message]:
    return [
        Message(topic, each.partition, offset, each.key, each.value, each.timestamp, each.headers, timestamp_type=0)
        for each, offset, ended_well in history.written
        if ended_well or not committed
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_codec_byte_for_byte(cluster_of: ClusterOf, unique: str, version: str) -> None:
    """Fetched at once, and batch by batch: transactions then span many fetches, which begin in the middle of them."""
    cluster = cluster_of(version)
    histories = {}
    for codec in CODECS[version]:
        topic = f"{unique}-{codec}"
        await create_topic(cluster.connect, topic, 1)
        histories[topic] = History(cluster.bootstrap, topic, codec)
        await asyncio.to_thread(histories[topic].write, steps())
    for isolation in ("read_uncommitted", "read_committed"):
        committed = isolation == "read_committed"
        for size in ("1MiB", "100B"):
            group = f"{unique}-{isolation}-{size}"
            async with member(
                cluster, group, dict.fromkeys(histories, 1), fetch={"isolation": isolation, "max_bytes": size}
            ) as (_, streams):
                for topic, history in histories.items():
                    wanted = expected(topic, history, committed=committed)
                    # In order, and the last one is the topic's last: records that must not be delivered would be among
                    # them.
                    assert await take(streams[topic][0], len(wanted)) == wanted, (topic, isolation, size)


async def test_positions_advance_over_undelivered_records(cluster_of: ClusterOf, unique: str) -> None:
    """Markers and aborted records at the end of the log, and a start in the middle of an aborted transaction."""
    cluster = cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, 1)
    history = History(cluster.bootstrap, unique)
    await asyncio.to_thread(
        history.write, [("", some("plain")), ("a", some("a")), ("", some("more")), ("a", some("a")), ("a", ABORT)]
    )
    end = history.written[-1].offset + 2  # behind the marker
    read_committed = {"isolation": "read_committed", "max_bytes": "100B"}
    async with member(cluster, unique, {unique: 1}, fetch=read_committed) as (consumer, streams):
        assert [message.offset for message in await take(streams[unique][0], 4)] == [0, 1, 2, 6]
    assert await stored_offset(cluster, unique, unique) == 6
    async with session(cluster.connect) as zookeeper:
        await zookeeper.set(f"/consumers/{unique}/offsets/{unique}/0", b"4", -1)
    async with member(cluster, unique, {unique: 1}, fetch=read_committed) as (consumer, streams):
        assert await take(streams[unique][0], 3) == expected(unique, history, committed=True)[3:]
        with anyio.move_on_after(0.5):
            await take(streams[unique][0], 1)
            pytest.fail("there is no more")
        await until(lambda: [(each.fetched, each.processed) for each in consumer.positions()] == [(end, end)])
        await consumer.commit()
        assert await stored_offset(cluster, unique, unique) == end


@pytest.mark.parametrize("how", [COMMIT, ABORT])
@pytest.mark.parametrize("version", ["1.1.1", "3.9.1"])
async def test_nothing_after_an_open_transaction_is_delivered(
    cluster_of: ClusterOf, unique: str, version: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 1)
    history = History(cluster.bootstrap, unique)
    await asyncio.to_thread(history.write, [("", some("plain")), ("a", some("a")), ("", some("behind"))])
    monkeypatch.setattr(response_handler, "OPEN_FOR", 0.0)
    open_from, end = 3, 9
    with capture_logs() as reported:
        async with (
            member(cluster, f"{unique}-1", {unique: 1}, fetch={"isolation": "read_committed"}) as (consumer, streams),
            member(cluster, f"{unique}-2", {unique: 1}, fetch={"isolation": "read_uncommitted"}) as (_, all_streams),
            member(
                cluster,
                f"{unique}-3",
                {unique: 1},
                fetch={"isolation": "read_committed"},
                offsets={"reset": "largest"},
            ) as (latest, latest_streams),
        ):
            assert [message.offset for message in await take(all_streams[unique][0], end)] == list(range(end))
            assert [message.offset for message in await take(streams[unique][0], 3)] == [0, 1, 2]
            await until(lambda: [each.fetched for each in consumer.positions()] == [open_from])
            assert [each.high_watermark for each in consumer.positions()] == [open_from]
            # As for Kafka's own consumer, the log ends where the open transaction begins.
            at_open = [(open_from, open_from)]
            await until(lambda: [(each.fetched, each.high_watermark) for each in latest.positions()] == at_open)
            await asyncio.to_thread(history.write, [("a", how)])
            wanted = expected(unique, history, committed=True)[3:]
            assert len(wanted) == (6 if how == COMMIT else 3)
            assert await take(streams[unique][0], len(wanted)) == wanted
            assert await take(latest_streams[unique][0], len(wanted)) == wanted
            await until(lambda: [each.high_watermark for each in consumer.positions()] == [end + 1])
    waits = [line for line in reported if line["event"] == "transaction not ended, records behind it wait"]
    assert [(line["offset"], line["end"]) for line in waits] == [(open_from, end)] * 2, (
        "once for each member that waits"
    )


async def test_a_broker_without_transactions_has_nothing_to_leave_out(cluster_of: ClusterOf, unique: str) -> None:
    cluster = cluster_of("0.10.2.2")
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, "0.10.2.2", unique, [Sent(0, None, b"x")] * 3)
    for reset in ("smallest", "largest"):
        async with member(
            cluster, f"{unique}-{reset}", {unique: 1}, fetch={"isolation": "read_committed"}, offsets={"reset": reset}
        ) as (consumer, streams):
            if reset == "smallest":
                assert [message.offset for message in await take(streams[unique][0], 3)] == [0, 1, 2]
            await until(lambda: [each.fetched for each in consumer.positions()] == [3])
            await until(lambda: [each.high_watermark for each in consumer.positions()] == [3])
