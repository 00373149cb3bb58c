"""A run whose logs or topics are gone since its ends were fixed: it ends and reports it, or fails, by the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import msgspec
import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

import kzconsumer
from kzconsumer import runs
from kzconsumer.consumer import ConsumerConnector
from kzconsumer.errors import OffsetLostError
from kzconsumer.model import TopicPartition
from kzconsumer.registry.group_records import GroupRun, TopicEnds, decode_group_run, encode_group_run
from kzconsumer.sessions import Sessions
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import Daemon, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session

LIMIT = 40.0


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker has just become leader here."""
    monkeypatch.setattr(runs, "LOG_LOOK", 0.0)
    monkeypatch.setattr(runs, "END_PATIENCE", 0.0)


async def send(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(0, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def begun(cluster: Cluster, name: str, end: int, *, incarnation: str | None = None, stored: int = 0) -> None:
    """A run in progress to an end that the log may no longer have, as after an unclean leader election."""
    async with session(cluster.connect) as operator:
        czxid = (await operator.get(f"/brokers/topics/{name}")).stat.czxid
        run = GroupRun(
            id="nightly",
            stop_at=-1,
            began=1,
            subscriptions=(f'["static","{name}"]',),
            topics={name: TopicEnds(incarnation or f"{czxid:#x}", {0: end})},
        )
        await operator.ensure(f"/consumers/{name}/offsets/{name}")
        await operator.create(f"/consumers/{name}/run", encode_group_run(run))
        await operator.create(f"/consumers/{name}/offsets/{name}/0", b"%d" % stored)


async def run_of(cluster: Cluster, group: str) -> GroupRun:
    async with session(cluster.connect) as operator:
        return decode_group_run((await operator.get(f"/consumers/{group}/run")).data)


def configured(cluster: Cluster, name: str, **offsets: str) -> kzconsumer.Settings:
    run = {"stop_at": "end", "run": "nightly"}
    return settings(cluster.connect, name, subscription=run, offsets={"commit_interval": "500ms", **offsets})


async def finish(configured: kzconsumer.Settings, topic: str) -> list[int]:
    """Offsets that a member reads until it leaves and the run is over."""
    with anyio.fail_after(LIMIT):
        async with kzconsumer.connect(configured) as consumer:
            (stream,) = (await consumer.create_message_streams({topic: 1}))[topic]
            return [message.offset async for message in stream]


async def finish_unread(configured: kzconsumer.Settings, topic: str) -> None:
    """As by a member whose sink receives nothing."""
    with anyio.fail_after(LIMIT):
        sessions = Sessions(configured)
        async with sessions.running():
            await ConsumerConnector(sessions).create_message_streams({topic: 1})
            await sessions.finished.wait()


def output(logs: Sequence[Mapping[str, object]]) -> list[tuple[object, ...]]:
    event = "run shortened, records are no longer in the log"
    return [(line["partition"], line["first"], line["until"]) for line in logs if line["event"] == event]


@pytest.mark.usefixtures("at_once")
async def test_a_log_that_was_truncated_below_the_end(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, 10)
    await begun(cluster, unique, 15)
    with pytest.raises(
        OffsetLostError, match=rf'^{unique}-0 has a log that ends at 10 .* up to 15\. .* reset = "smallest"'
    ):
        await finish_unread(configured(cluster, unique, reset="fail"), unique)
    assert (await run_of(cluster, unique)).finished is None

    with capture_logs() as logs, anyio.fail_after(LIMIT):
        async with kzconsumer.connect(configured(cluster, unique)) as consumer:
            (stream,) = (await consumer.create_message_streams({unique: 1}))[unique]
            while (await run_of(cluster, unique)).ends != {TopicPartition(unique, 0): 10}:
                await anyio.sleep(0.05)
            await send(cluster, unique, 3)  # records that take the lost offsets belong to the next run
            first = [message.offset async for message in stream]
    assert output(logs) == [(0, 10, 15)]
    assert (await run_of(cluster, unique)).finished is not None
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [10]
    assert first == list(range(10))
    tomorrow = msgspec.structs.replace(configured(cluster, unique).subscription, run="tomorrow")
    read = await finish(msgspec.structs.replace(configured(cluster, unique), subscription=tomorrow), unique)
    assert read == [10, 11, 12]


@pytest.mark.usefixtures("at_once")
async def test_a_topic_that_is_gone(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await begun(cluster, unique, 15, incarnation="0x1", stored=4)
    gone = f"^{unique}-0 is committed up to 4, and its topic was deleted; "
    gone += r'run nightly .* up to 15. .* reset = "smallest"'
    with pytest.raises(OffsetLostError, match=gone):
        await finish(configured(cluster, unique, reset="fail"), unique)
    with capture_logs() as logs:
        assert await finish(configured(cluster, unique), unique) == []
    assert output(logs) == [(0, 4, 15)]
    assert (await run_of(cluster, unique)).finished is not None


async def test_records_deleted_beyond_the_end(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """Nothing is left to wait for, however long a batch may take."""
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, 20)
    await begun(cluster, unique, 15, stored=4)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_records([KafkaPartition(unique, 0, 18)]).values()
    await asyncio.to_thread(deleted.result, LIMIT)
    job = Daemon(tmp_path, cluster.connect, unique, {unique: 1}, "", "smallest")
    text = job.config.read_text().replace('max_time = "100ms"', 'max_time = "10m"')
    job.config.write_text(text.replace("[subscription]", '[subscription]\nstop_at = "end"\nrun = "nightly"'))
    job.start()
    assert job.process is not None
    try:
        assert await job.ended(LIMIT) == 0
    finally:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
    (gone,) = job.events("records are gone from the log")
    assert (gone["first"], gone["until"]) == (4, 18)
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [18]
