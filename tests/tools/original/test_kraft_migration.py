"""A group lives through its cluster's migration from ZooKeeper to KRaft, under load, and goes on with Kafka 4.

Members join, are killed and leave in each phase and during each step. An original member cannot follow.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import dropwhile
from pathlib import Path

import anyio
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kzconsumer_sandbox.servers.sandbox import Migration
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.extent import only_nightly
from tests.support.members import Daemon, daemon, reader, settings
from tests.support.original import console_consumer
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import until

PARTITIONS = 4
LIMIT = 60.0

Place = tuple[int, int]


class Load:
    """Records produced without end; `sent` has those that brokers have acknowledged.

    A broker that has just started knows no topic for a moment, which librdkafka reports as an error.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: dict[Place, bytes] = {}
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._stop = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            with suppress(KafkaException):
                for _ in range(4):
                    value, partition = b"%d" % number, number % PARTITIONS
                    self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
                    number += 1
            self._producer.poll(0)
        self._producer.flush(LIMIT)

    def has_sent(self, number: int) -> bool:
        return len(self.sent) > number

    def stop(self) -> None:
        self._stop.set()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset, value = message.partition(), message.offset(), message.value()
        # A record whose acknowledgement was lost has no offset, though it was written.
        if error is None and partition is not None and offset is not None and isinstance(value, bytes):
            self.sent[partition, offset] = value


@contextmanager
def load(bootstrap: str, topic: str) -> Iterator[Load]:
    producing = Load(bootstrap, topic)
    thread = threading.Thread(target=producing.run)
    thread.start()
    try:
        yield producing
    finally:
        producing.stop()
        thread.join()


Records = list[tuple[Place, bytes]]
"""In the order of their delivery."""


def written(member: Daemon) -> Records:
    return [((each["partition"], each["offset"]), each["value"].encode()) for each in member.records()]


def repeated_from_one_offset_on(killed: Records, by_others: Counter[Place]) -> bool:
    """Whether only the last records of each partition are delivered again: those that were not committed."""
    of: dict[int, list[bool]] = defaultdict(list)
    for place, _ in killed:
        of[place[0]].append(place in by_others)
    return all(all(dropwhile(lambda again: not again, each)) for each in of.values())


@only_nightly
@pytest.mark.timeout(900)
async def test_no_record_is_lost_or_doubled_while_the_cluster_leaves_zookeeper(
    servers: Servers, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, others = servers.cluster("migrating"), f"{unique}-others"
    await create_topic(cluster.connect, unique, PARTITIONS)
    migration = Migration(cluster, tmp_path / "controller", servers.java)
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    killed: list[Records] = []
    finished: list[Records] = []
    steady_settings = settings(cluster.connect, unique, brokers={"metadata_interval": "500ms"})

    async def in_the_way(group: str) -> list[str]:
        """The original members that `groups doctor` lists."""
        found = json.loads((await kzconsumer("groups", "doctor", group, "-o", "json")).out)
        return [each["path"].rpartition("/")[2] for each in found["findings"] if each["id"] == "original_member"]

    try:
        with (
            load(cluster.bootstrap, unique) as producing,
            console_consumer(servers, cluster, others, unique, tmp_path / "original") as original,
        ):
            async with reader(steady_settings, {unique: 1}) as steady:

                async def members_come_and_go(phase: str) -> None:
                    with (
                        daemon(tmp_path / phase / "killed", cluster.connect, unique, {unique: 1}) as dying,
                        daemon(tmp_path / phase / "stopped", cluster.connect, unique, {unique: 1}) as leaving,
                    ):
                        await until(lambda: len(dying.records()) >= 20 and len(leaving.records()) >= 20, LIMIT)
                        dying.signal(signal.SIGKILL)
                        await dying.ended()
                        leaving.signal(signal.SIGTERM)
                        assert await leaving.ended(LIMIT) == 0
                        killed.append(written(dying))
                        finished.append(written(leaving))
                    await until(lambda: len(steady.owned) == PARTITIONS, LIMIT)

                async def take(step: Callable[[], Awaitable[None]]) -> int:
                    """Of the lines that the original member prints, those it has printed when the step is done."""
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(members_come_and_go, f"during {step.__name__}")
                        await step()
                    lines = len(original.out.read_bytes().splitlines())
                    await until(partial(producing.has_sent, len(producing.sent) + 100), LIMIT)
                    await members_come_and_go(f"after {step.__name__}")
                    return lines

                def delivers_after(lines: int) -> bool:
                    return len(original.out.read_bytes().splitlines()) > lines

                await until(lambda: delivers_after(0), LIMIT)
                await members_come_and_go("before")
                assert await in_the_way(others) == []
                assert delivers_after(await take(migration.copy))
                assert await in_the_way(others) == [original.consumer]
                assert not delivers_after(await take(migration.change_mode))
                assert await in_the_way(others) == [original.consumer]
                original.kill()
                with anyio.fail_after(LIMIT):
                    while await in_the_way(others):
                        await anyio.sleep(0.5)
                await take(migration.finish)
                await take(migration.upgrade)
                assert await in_the_way(unique) == []

                await asyncio.to_thread(producing.stop)
                left = len(producing.sent) - sum(map(len, killed + finished))
                await until(lambda: len(steady.messages) >= left, LIMIT)
                present = {place for records in (*killed, *finished) for place, _ in records}
                await until(
                    lambda: producing.sent.keys() <= present | {(at.partition, at.offset) for at in steady.messages},
                    LIMIT,
                )
    finally:
        migration.kill()
    kept = [((at.partition, at.offset), at.value or b"") for at in steady.messages]
    once = Counter(place for records in (kept, *finished) for place, _ in records)
    assert {place for place, times in once.items() if times > 1} == set()
    assert all(repeated_from_one_offset_on(records, once) for records in killed)
    everything = [*kept, *(record for records in (*killed, *finished) for record in records)]
    assert producing.sent.keys() <= {place for place, _ in everything}
    assert [(place, value) for place, value in everything if producing.sent.get(place, value) != value] == []
