"""Explicit acknowledgement with real servers: unacknowledged records are redelivered, wherever they move."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio

import kzconsumer
from kzconsumer import ConsumerConnector, KafkaStream, Message
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import LIMIT, take
from tests.support.members import stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

PARTITIONS = 4
# What ends a claim earlier than the default: a test waits for it.
REVOKE_DEADLINE = 0.5


async def fill(cluster: Cluster, topic: str, partitions: int, records: int) -> None:
    """So many records in each partition."""
    await create_topic(cluster.connect, topic, partitions)
    sent = [Sent(n % partitions, None, b"%d" % n) for n in range(records * partitions)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, sent)


@asynccontextmanager
async def member(cluster: Cluster, name: str) -> AsyncIterator[tuple[ConsumerConnector, KafkaStream]]:
    """One explicit stream of the topic named like the group."""
    settings = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": cluster.connect, "session_timeout": "3s"},
            "group": {"id": name, "revoke_deadline": f"{REVOKE_DEADLINE}s"},
            "offsets": {"commit_interval": "50ms"},
        }
    )
    async with kzconsumer.connect(settings, acknowledge="explicit") as consumer:
        with anyio.fail_after(LIMIT):
            streams = await consumer.create_message_streams({name: 1})
        yield consumer, streams[name][0]


@contextmanager
def killable(folder: Path, cluster: Cluster, name: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A member in a process of its own, and the file that records its work."""
    done = folder / "done"
    command = [sys.executable, "-m", "tests.support.acknowledging_member", cluster.connect, name, name, "1"]
    with done.open("wb") as out:
        process = subprocess.Popen(command, stdout=out)
    try:
        yield process, done
    finally:
        process.kill()
        process.wait()


def lines(file: Path) -> set[tuple[int, int]]:
    found = (line.split() for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))
    return {(int(partition), int(offset)) for partition, offset in found}


async def test_a_kill_between_out_of_order_acknowledgements_loses_nothing(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """One member is killed with gaps in its acknowledgements; the other one gets all that is left."""
    number = 400
    await fill(cluster, unique, PARTITIONS, number)
    chance, pending, done = random.Random(2), list[Message](), set[tuple[int, int]]()

    async def work(stream: KafkaStream) -> None:
        async for message in stream:
            pending.append(message)
            if len(pending) > 30:
                finish(stream, chance.randrange(len(pending)))
                await anyio.sleep(0.001)

    def finish(stream: KafkaStream, index: int) -> None:
        message = pending.pop(index)
        if stream.ack(message):
            done.add((message.partition, message.offset))

    with killable(tmp_path, cluster, unique) as (victim, file):
        await until(lambda: len(lines(file)) >= 100, LIMIT)
        async with member(cluster, unique) as (consumer, stream), anyio.create_task_group() as tasks:
            tasks.start_soon(work, stream)
            await until(lambda: len(done) >= 100, LIMIT)
            victim.kill()
            victim.wait()
            killed_with = lines(file)
            await until(lambda: len(consumer.positions()) == PARTITIONS, LIMIT)
            await until(lambda: all(at.consumed == number for at in consumer.positions()), LIMIT)
            before = await stored_offsets(cluster.connect, unique, unique, PARTITIONS)
            while pending:
                finish(stream, -1)
            tasks.cancel_scope.cancel()
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(number)}
    assert len(killed_with) < len(everything)
    assert min(offset or 0 for offset in before) < number, "some were not acknowledged yet"
    assert everything - killed_with - done == set()
    assert await stored_offsets(cluster.connect, unique, unique, PARTITIONS) == [number] * PARTITIONS


async def test_a_clean_stop_commits_the_prefix_and_the_rest_is_redelivered(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique, 1, 30)
    async with member(cluster, unique) as (consumer, stream):
        messages = await take(stream, 20)
        for number in (4, 3, 0, 1, 7, 2, 12):
            assert stream.ack(messages[number])
        await consumer.commit()
        assert await stored_offsets(cluster.connect, unique, unique, 1) == [5]
        assert stream.ack(messages[5])
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [6]
    assert not stream.ack(messages[6]), "the member has left: it is redelivered to the next one"
    async with member(cluster, unique) as (_, stream):
        assert [message.offset for message in await take(stream, 24)] == list(range(6, 30))


async def test_unacknowledged_records_move_with_their_partition(cluster: Cluster, unique: str) -> None:
    """Late acknowledgements return that they have no effect; one in time does, although the partition is revoked."""
    await fill(cluster, unique, 2, 20)
    async with member(cluster, unique) as (first, stream):
        messages = await take(stream, 40)
        kept = {0: list[Message](), 1: list[Message]()}
        for message in messages:
            kept[message.partition].append(message)
        for number in (0, 1, 2, 9, 5):
            assert all(stream.ack(kept[partition][number]) for partition in (0, 1))
        async with member(cluster, unique) as (second, other):
            await until(lambda: len(first.positions()) == 1 and len(second.positions()) == 1, LIMIT)
            (moved,) = [at.partition for at in second.positions()]
            again = await take(other, 17)
            assert [(m.partition, m.offset) for m in again] == [(moved, offset) for offset in range(3, 20)]
            assert not any(stream.ack(message) for message in kept[moved])
            assert all(stream.ack(message) for message in kept[1 - moved])
            assert all(other.ack(message) for message in reversed(again))
    stored = await stored_offsets(cluster.connect, unique, unique, 2)
    assert stored == [20, 20]


async def test_a_seek_abandons_records_that_were_handed_out(cluster: Cluster, unique: str) -> None:
    await fill(cluster, unique, 1, 20)
    async with member(cluster, unique) as (consumer, stream):
        before = await take(stream, 10)
        stream.ack(before[0])
        await consumer.seek(kzconsumer.TopicPartition(unique, 0), 15)
        assert not stream.ack(before[1])
        after = await take(stream, 2)
        assert [message.offset for message in after] == [15, 16]
        assert stream.ack(after[1])
        await consumer.commit()
        assert await stored_offsets(cluster.connect, unique, unique, 1) == [15]
        assert stream.ack(after[0])
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [17]
