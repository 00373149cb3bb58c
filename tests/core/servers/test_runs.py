"""Scheduled jobs on real servers: end offsets that are fixed once for a group's run, and when its members leave."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import pytest

import kzconsumer
from kzconsumer.consumer import ConsumerConnector
from kzconsumer.errors import NotFoundError
from kzconsumer.model import TopicPartition
from kzconsumer.registry.group_records import GroupRun, decode_group_run, encode_group_run
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import add_partitions, create_topic
from tests.support.extent import only_nightly
from tests.support.members import Daemon, daemon, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.transactions import COMMIT, History
from tests.support.zookeeper_sessions import session, until

LIMIT = 40.0


async def send(cluster: Cluster, topic: str, number: int, partitions: int = 1) -> None:
    records = [Sent(n % partitions, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def run_of(cluster: Cluster, group: str) -> GroupRun:
    async with session(cluster.connect) as operator:
        return decode_group_run((await operator.get(f"/consumers/{group}/run")).data)


async def read(
    configured: kzconsumer.Settings,
    topic: str,
    meanwhile: Callable[[ConsumerConnector], Awaitable[None]] | None = None,
) -> list[tuple[int, int]]:
    """A member that reads until its stream ends and logs that the run is over; returns partition and offset of each
    record.

    `meanwhile` runs while the first record is in hand.
    """
    found: list[tuple[int, int]] = []
    with anyio.fail_after(LIMIT):
        async with kzconsumer.connect(configured) as consumer:
            (stream,) = (await consumer.create_message_streams({topic: 1}))[topic]
            async for message in stream:
                found.append((message.partition, message.offset))
                if meanwhile is not None:
                    await meanwhile(consumer)
                    meanwhile = None
            assert consumer.finished.is_set()
    return sorted(found)


def scheduled(cluster: Cluster, name: str, /, **subscription: object) -> kzconsumer.Settings:
    return settings(cluster.connect, name, subscription={"stop_at": "end", **subscription})


async def test_members_of_a_run_share_its_ends_and_wait_for_each_other(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, 20)
    late: list[list[tuple[int, int]]] = []

    async def second() -> None:
        late.append(await read(scheduled(cluster, unique), unique))

    async with anyio.create_task_group() as tasks:

        async def meanwhile(consumer: ConsumerConnector) -> None:
            await send(cluster, unique, 20)  # not part of this run
            tasks.start_soon(second)
            async with session(cluster.connect) as operator:
                with anyio.fail_after(LIMIT):
                    while len(await operator.children(f"/consumers/{unique}/ids")) < 2:
                        await anyio.sleep(0.02)
            await anyio.sleep(1.2)  # two reads of the run and more
            assert not late, "a member without partitions waits until everything is committed"

        # Its id sorts first, so that it owns the only partition, whichever other member joins.
        first = settings(
            cluster.connect,
            unique,
            group={"id": unique, "consumer_id": "-"},
            subscription={"stop_at": "end"},
            offsets={"commit_interval": "1h"},
        )
        found = await read(first, unique, meanwhile)
    assert found == [(0, offset) for offset in range(20)]
    assert late == [[]]
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [20]
    over = await run_of(cluster, unique)
    assert over.finished is not None

    # What comes next is another run with its own ends.
    assert await read(scheduled(cluster, unique), unique) == [(0, offset) for offset in range(20, 40)]
    assert (await run_of(cluster, unique)).id != over.id


async def test_an_interrupted_run_continues_with_its_ends(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 40, 2)
    async with kzconsumer.connect(scheduled(cluster, unique)) as consumer:
        (stream,) = (await consumer.create_message_streams({unique: 1}))[unique]
        async for _ in stream:
            break
        with anyio.fail_after(LIMIT):
            while consumer.run is None:
                await anyio.sleep(0.02)
        begun = consumer.run
        assert begun.ends == {TopicPartition(unique, 0): 20, TopicPartition(unique, 1): 20}
    await send(cluster, unique, 40, 2)
    await add_partitions(cluster.connect, unique, 3)
    found = await read(scheduled(cluster, unique), unique)
    assert found[-20:] == [(1, offset) for offset in range(20)]
    assert await stored_offsets(cluster.connect, unique, unique, 3) == [20, 20, None], "a partition added has no part"
    assert (await run_of(cluster, unique)).id == begun.id

    # With a name, a finished run is done, and another name is another run.
    assert len(await read(scheduled(cluster, unique, run="monday"), unique)) == 40
    await send(cluster, unique, 3, 3)
    assert await read(scheduled(cluster, unique, run="monday"), unique) == []
    assert await read(scheduled(cluster, unique, run="tuesday"), unique) == [(0, 40), (1, 40), (2, 0)]


async def test_a_recreated_topic_is_not_part_of_the_run(cluster: Cluster, unique: str) -> None:
    kept, gone = f"{unique}-kept", f"{unique}-gone"
    for topic in (kept, gone):
        await create_topic(cluster.connect, topic, 1)
        await send(cluster, topic, 10)
    async with session(cluster.connect) as operator:
        stat = (await operator.get(f"/brokers/topics/{kept}")).stat
        await operator.ensure(f"/consumers/{unique}")
        key = f'["white_list","{unique}.*"]'
        ends = f'"{kept}":{{"incarnation":"{stat.czxid:#x}","ends":{{"0":4}}}}'
        other = f'"{gone}":{{"incarnation":"0x1","ends":{{"0":4}}}}'
        escaped = key.replace('"', '\\"')
        run = f'{{"id":"r","stop_at":-1,"began":1,"subscriptions":["{escaped}"],"topics":{{{ends},{other}}}}}'
        await operator.create(f"/consumers/{unique}/run", run.encode())
    with anyio.fail_after(LIMIT):
        async with kzconsumer.connect(scheduled(cluster, unique)) as consumer:
            white = kzconsumer.Include(f"{unique}.*")
            (stream,) = await consumer.create_message_streams_by_filter(white)
            assert [(message.topic, message.offset) async for message in stream] == [(kept, n) for n in range(4)]


async def test_without_its_topic_there_is_no_run(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    with pytest.raises(NotFoundError, match=f"^/brokers/topics/{unique}-x: no such topic; did you mean {unique}\\?$"):
        await read(scheduled(cluster, unique), f"{unique}-x")
    assert await read(scheduled(cluster, unique), unique) == [], "the right one is not blocked"


async def test_a_wrong_chroot_has_no_topics(cluster: Cluster, unique: str) -> None:
    wrong = settings(f"{cluster.connect}/{unique}", unique, subscription={"stop_at": "end"})
    with pytest.raises(NotFoundError, match="no such topic; the cluster has no topics: check the chroot"):
        await read(wrong, unique)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_ends_that_no_record_reaches(cluster: Cluster, unique: str, isolation: str) -> None:
    """Partition 0 ends with a transaction's marker, 1 is empty, and 2 ends with a transaction still open."""
    await create_topic(cluster.connect, unique, 3)
    history = History(cluster.bootstrap, unique)

    def write() -> None:
        history.write([("one", Sent(0, None, b"a")), ("one", Sent(0, None, b"b")), ("one", COMMIT)])
        history.write([("two", Sent(2, None, b"a")), ("two", COMMIT), ("two", Sent(2, None, b"b"))])

    await asyncio.to_thread(write)
    configured = settings(cluster.connect, unique, subscription={"stop_at": "end"}, fetch={"isolation": isolation})
    found = await read(configured, unique)
    open_one = [(2, 2)] if isolation == "read_uncommitted" else []
    assert found == [(0, 0), (0, 1), (2, 0), *open_one]
    stored = await stored_offsets(cluster.connect, unique, unique, 3)
    assert stored == [3, 0, 3 if open_one else 2]


def callable_sink(function: str) -> str:
    return f'[sink]\nplugin = "callable"\noptions = {{ function = "tests.support.sinks:{function}" }}\n'


def job(folder: Path, cluster: Cluster, name: str, sink: str, subscription: str = "") -> Daemon:
    made = Daemon(folder, cluster.connect, name, {name: 1}, sink, "smallest")
    text = made.config.read_text()
    made.config.write_text(text.replace("[subscription]", f'[subscription]\nstop_at = "end"\n{subscription}'))
    return made


async def test_the_rest_of_a_killed_member_is_taken_over_and_finished(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 100, 2)
    hanging = callable_sink("hang") + '[stop]\ndeadline = "2s"\n'
    with daemon(tmp_path / "dead", cluster.connect, unique, {unique: 1}, hanging) as long_running:
        await until(lambda: bool(long_running.events("rebalanced")), LIMIT)
        stopped = job(tmp_path / "stopped", cluster, unique, hanging)
        finishing = job(tmp_path / "finishing", cluster, unique, "")
        for member in (stopped, finishing):
            member.start()
        try:
            await until(lambda: bool(finishing.events("registered") and stopped.events("registered")), LIMIT)
            stopped.signal(signal.SIGTERM)
            assert await stopped.ended(LIMIT) == 75, "a run that is not at its end must not look complete"
            assert stopped.events("stopped before the end of the run, start again to continue")
            await send(cluster, unique, 100, 2)  # the ends of the run stand
            assert finishing.process is not None
            assert finishing.process.poll() is None
            assert long_running.process is not None
            long_running.process.kill()
            assert await finishing.ended(LIMIT) == 0
        finally:
            for member in (stopped, finishing):
                if member.process is not None and member.process.poll() is None:
                    member.process.kill()
                    member.process.wait()
    assert sorted((r["partition"], r["offset"]) for r in finishing.records()) == [
        (partition, offset) for partition in range(2) for offset in range(50)
    ]
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [50, 50]


async def test_a_sink_slower_than_the_session_costs_no_session(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """And a run that others have not finished is finished before ours begins, by the same process."""
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, 100)
    async with kzconsumer.connect(scheduled(cluster, unique, run="monday")) as consumer:
        await consumer.create_message_streams({unique: 1})
        with anyio.fail_after(LIMIT):
            while consumer.run is None:
                await anyio.sleep(0.02)
    await send(cluster, unique, 100)
    slow = callable_sink("sleep_for_longer_than_a_session")
    tuesday = job(tmp_path, cluster, unique, slow, 'run = "tuesday"')
    tuesday.start()
    assert tuesday.process is not None
    try:
        assert await tuesday.ended(60) == 0
    finally:
        if tuesday.process.poll() is None:
            tuesday.process.kill()
            tuesday.process.wait()
    assert [(record["first"], record["until"]) for record in tuesday.records()] == [(0, 100), (100, 200)]
    assert len(tuesday.events("registered")) == 2, "once for each run"
    assert not tuesday.events("session expired, joining again")
    assert (await run_of(cluster, unique)).id == "tuesday"


@only_nightly  # the same of simulated daemons: tests/core/plain/test_daemon_machine.py
async def test_a_run_that_is_over_starts_no_sink(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """Starting Spark would take ten seconds."""
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 10, 2)

    async def started(name: str, subscription: str = "") -> bool:
        made = job(tmp_path / name, cluster, unique, "", subscription)
        made.start()
        assert made.process is not None
        try:
            assert await made.ended(LIMIT) == 0
        finally:
            if made.process.poll() is None:
                made.process.kill()
                made.process.wait()
        assert bool(made.events("run is finished already, the sink is not started")) != bool(
            made.events("sink starting")
        )
        return bool(made.events("sink starting"))

    assert await started("monday", 'run = "monday"\n')
    await send(cluster, unique, 10, 2)
    assert not await started("again", 'run = "monday"\n')
    assert await started("tuesday", 'run = "tuesday"\n')
    # A new one without records is finished at once.
    assert not await started("wednesday", 'run = "wednesday"\n')
    over = await run_of(cluster, unique)
    assert (over.id, over.finished is not None) == ("wednesday", True)
    # A run of others that is not finished yet.
    async with session(cluster.connect) as operator:
        unfinished = encode_group_run(msgspec.structs.replace(over, finished=None))
        await operator.set(f"/consumers/{unique}/run", unfinished, -1)
    assert not await started("thursday", 'run = "thursday"\n')
    assert (await run_of(cluster, unique)).id == "thursday"
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [10, 10]
