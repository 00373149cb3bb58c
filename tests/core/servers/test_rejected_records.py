"""Poison among valid records, with a real broker: skipped, written as a dead letter, or the end; never lost."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from structlog.testing import capture_logs

from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.errors import RecordRejectedError
from kzconsumer.offsets.progress import Message
from kzconsumer.rejected import LetterTopic
from kzconsumer.settings.sections import BrokersSettings
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import LIMIT, member, stored_offset, take
from tests.support.dead_letters import read_letters
from tests.support.members import committed, daemon, sessions_of
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

TIME = 1_700_000_000_000
CLASSES = {b"poison": "undecodable", b"chaff": "worthless", b"grave": "grave"}


async def fill(cluster: Cluster, topic: str, odd: dict[int, bytes], records: int = 20, partitions: int = 1) -> None:
    """A topic whose values are numbers, except for the odd ones."""
    await create_topic(cluster.connect, topic, partitions)
    sent = [
        Sent(n % partitions, b"key %d" % n, odd.get(n, b"%d" % n), (("trace", b"%d" % n),), TIME + n)
        for n in range(records)
    ]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, sent)


def lines(directory: Path) -> list[int]:
    """The offsets of the dead letters in a directory."""
    whole = (line for file in directory.glob("*.jsonl") for line in file.read_bytes().splitlines(keepends=True))
    return sorted(json.loads(line)["offset"] for line in whole if line.endswith(b"\n"))


async def test_each_class_follows_its_policy(cluster: Cluster, unique: str) -> None:
    """Dead letters are in their topic before the commit, skipped records are logged, and a forbidden class ends the
    loop.
    """
    letters = f"{unique}-letters"
    await create_topic(cluster.connect, letters, 1)
    await fill(cluster, unique, {3: b"poison", 5: b"chaff", 11: b"poison", 15: b"grave"})
    table = {"classes": {"undecodable": "dead-letter", "worthless": "skip"}, "topic": letters}
    good = list[int]()
    with capture_logs() as reported:
        async with member(cluster, unique, {unique: 1}, rejected=table) as (consumer, streams):
            (stream,) = streams[unique]

            async def consume() -> None:
                async for message in stream:
                    error_class = CLASSES.get(message.value or b"")
                    if error_class is None:
                        good.append(message.offset)
                        continue
                    assert await stream.reject(message, "of no use", error_class=error_class)
                    if message.offset == 3:
                        (letter,) = await asyncio.to_thread(read_letters, cluster.bootstrap, letters, 1)
                        assert letter.original_offset == 3

            with pytest.raises(RecordRejectedError, match="at offset 15 was rejected as grave: of no use"):
                await consume()
            counts = dict(sessions_of(consumer).counters.rejected)
    assert good == [n for n in range(15) if n not in (3, 5, 11)]
    assert await stored_offset(cluster, unique, unique) == 15
    assert counts == {("undecodable", "dead-letter"): 2, ("worthless", "skip"): 1, ("other", "fail"): 1}
    (skipped,) = [line for line in reported if line["event"] == "rejected record skipped"]
    assert (skipped["offset"], skipped["error_class"], skipped["reason"]) == (5, "worthless", "of no use")
    first, second = await asyncio.to_thread(read_letters, cluster.bootstrap, letters, 2)
    assert (first.original_offset, second.original_offset) == (3, 11)
    assert (second.key, second.value) == (b"key 11", b"poison")
    assert second.headers == [
        ("trace", b"11"),
        ("kafka_dlt-original-topic", unique.encode()),
        ("kafka_dlt-original-partition", bytes(4)),
        ("kafka_dlt-original-offset", (11).to_bytes(8, "big")),
        ("kafka_dlt-original-timestamp", (TIME + 11).to_bytes(8, "big")),
        ("kafka_dlt-original-timestamp-type", b"CreateTime"),
        ("kafka_dlt-original-consumer-group", unique.encode()),
        ("kafka_dlt-exception-fqcn", b"undecodable"),
        ("kafka_dlt-exception-message", b"of no use"),
    ]


async def test_a_partition_waits_while_a_dead_letter_cannot_be_written(cluster: Cluster, unique: str) -> None:
    """Its topic does not exist: nothing is skipped, and it continues by itself once an operator creates it."""
    letters = f"{unique}-letters"
    await fill(cluster, unique, {2: b"poison"})
    tables = {"rejected": {"policy": "dead-letter", "topic": letters}, "fetch": {"request_timeout": "2s"}}
    with capture_logs() as reported:
        async with member(cluster, unique, {unique: 1}, **tables) as (consumer, streams):
            (stream,) = streams[unique]
            *_, poison = await take(stream, 3)
            rejecting = asyncio.create_task(stream.reject(poison, "of no use"))
            waits = "dead letter not written, partition waits"
            await until(lambda: any(line["event"] == waits for line in reported), LIMIT)
            await consumer.commit()
            assert await stored_offset(cluster, unique, unique) == 2
            assert not rejecting.done()
            await create_topic(cluster.connect, letters, 1)
            async with asyncio.timeout(LIMIT):
                assert await rejecting
            await consumer.commit()
            assert await stored_offset(cluster, unique, unique) == 3
    (line, *_) = [line for line in reported if line["event"] == waits]
    assert line["reason"].startswith(f"topic {letters}: ")
    assert line["reason"].endswith("Broker: Unknown topic or partition")
    (letter,) = await asyncio.to_thread(read_letters, cluster.bootstrap, letters, 1)
    assert letter.original_offset == 2


async def test_a_sinks_function_rejects_records(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    directory = tmp_path / "letters"
    await fill(cluster, unique, {7: b"poison", 30: b"poison", 33: b"poison"}, 40, partitions=2)
    sink = (
        '[sink]\nplugin = "callable"\noptions = { function = "tests.support.sinks:print_all_but_poison" }\n'
        f'[rejected]\nclasses = {{ undecodable = "dead-letter" }}\ndirectory = "{directory}"\n'
    )
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink) as running:
        await committed(cluster.connect, unique, unique, [20, 20], 60)
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0
    printed = {(each["partition"], each["offset"]) for each in running.records()}
    bad = {(n % 2, n // 2) for n in (7, 30, 33)}
    assert printed == {(n % 2, n // 2) for n in range(40)} - bad
    assert lines(directory) == [3, 15, 16]
    reported = running.events("rejected record written as dead letter")
    assert {(line["partition"], line["offset"]) for line in reported} == bad


@contextmanager
def rejecting(file: Path, topic: str, deadly: int, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.support.rejecting_member", str(file), topic, str(deadly)]
    with out.open("wb") as output:
        process = subprocess.Popen(command, stdout=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_a_kill_between_dead_letter_and_commit_redelivers_the_record(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """At least once: the letter that was on disk is there twice; nothing is lost, nothing is committed too early."""
    directory, file = tmp_path / "letters", tmp_path / "group.toml"
    await fill(cluster, unique, {4: b"poison", 9: b"poison", 16: b"poison"})
    file.write_text(
        f'[zookeeper]\nconnect = "{cluster.connect}"\nsession_timeout = "3s"\n[group]\nid = "{unique}"\n'
        f'[offsets]\ncommit_interval = "1h"\n[rejected]\npolicy = "dead-letter"\ndirectory = "{directory}"\n'
    )
    with rejecting(file, unique, 2, tmp_path / "first") as first:
        await until(lambda: first.poll() is not None, LIMIT)
    assert first.returncode == -signal.SIGKILL
    assert lines(directory) == [4, 9]
    assert await stored_offset(cluster, unique, unique) == 0
    with rejecting(file, unique, 0, tmp_path / "second") as second:
        await until(lambda: lines(directory) == [4, 4, 9, 9, 16], LIMIT)
        good = [n for n in range(20) if n not in (4, 9, 16)]
        await until(lambda: [int(n) for n in (tmp_path / "second").read_bytes().split()] == good, LIMIT)
        assert second.poll() is None


async def test_more_letters_than_a_producer_holds(
    cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds 100,000 by default, or 1 GiB: all records of a topic may be rejected."""
    made = confluent_kafka.Producer
    small = {"queue.buffering.max.messages": 10}
    monkeypatch.setattr(confluent_kafka, "Producer", lambda settings: made({**settings, **small}))
    await create_topic(cluster.connect, unique, 1)

    async def brokers() -> str:
        return cluster.bootstrap

    with closing(LetterTopic(unique, BrokersSettings(), unique, LIMIT, brokers)) as topic:
        odd = (("a\0b", b"x"), ("", None))
        messages = [Message("orders", 0, n, None, b"", None, odd) for n in range(100)]
        await topic.write([DeadLetter(each, "rejected", "no", "g") for each in messages])
    found = await asyncio.to_thread(read_letters, cluster.bootstrap, unique, 100)
    assert [letter.original_offset for letter in found] == list(range(100))
    assert found[99].headers[:2] == [("a\ufffdb", b"x"), ("", None)], "librdkafka ends a name at a NUL"
