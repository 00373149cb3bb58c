"""Runs whose topics are deleted, and perhaps created again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.storage import ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import CLAIM_RECORD_VERSION, ClaimRecord, encode_claim_record
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.simulated.clients import Clients
from tests.support.simulated.daemons import SHORTENED, Daemons, simulated_daemons
from tests.support.simulated.scene import Scene

SLOWLY = Scene(record_bytes=100, fetch=(("rate_limit", "4kB"), ("max_bytes", "2kB")))
PARTITION, OTHER = TopicPartition("t", 0), TopicPartition("tt", 0)


def test_a_run_reads_a_topic_that_was_created_again_since_the_last_one() -> None:
    """As long as it was: the offset of the earlier one is at the end of the new one until a member claims."""
    with simulated_daemons(1, Scene()) as daemons:
        daemons.group.logs.grow("t", 1)
        daemons.group.logs.stop()
        for run in ("monday", "tuesday"):
            daemons.group.logs.burst(300)
            daemon = daemons.start(Scene(), 0.0, topics={"t": 1}, stop_at="end", run=run)
            assert daemons.world.pass_time(60.0, daemon.task.done)
            daemons.check()
            assert (daemon.task.result(), daemons.done(PARTITION)) == (0, 300)
            daemons.recreate("t", 1)


def test_an_offset_that_a_claim_of_the_new_topic_removes_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim is made between the two reads."""
    clients, paths = Clients(), GroupPaths("g")

    async def script(session: ZooKeeperSession) -> None:
        offset, claim = paths.offset(PARTITION), paths.claim_record(PARTITION)
        for path, data in ((offset, b"300"), (claim, b"")):
            await session.ensure(path)
            await session.set(path, data, -1)
        await session.ensure("/made-again")
        topic = await session.find("/made-again")
        assert topic is not None
        incarnation, found = topic.stat.czxid, session.find

        async def find(path: str) -> Node | None:
            node = await found(path)
            if await found(offset) is not None:
                await session.delete(offset, -1)
                record = ClaimRecord(CLAIM_RECORD_VERSION, "range", f"{incarnation:#x}")
                await session.set(claim, encode_claim_record(record), -1)
            return node

        monkeypatch.setattr(session, "find", find)
        assert await ZooKeeperOffsetStorage(session, paths).stored_for({PARTITION: incarnation}) == {}

    clients.play(script)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("others", [0, 1])
def test_a_topic_that_is_deleted_during_a_run_ends_where_it_was_committed(others: int, again: bool) -> None:
    """Its stored offset is removed. Every member logs what is lost, and nothing else."""
    with simulated_daemons(1, SLOWLY) as daemons:
        daemons.group.logs.grow("t", 1)
        daemons.group.logs.burst(1000)
        daemons.group.logs.stop()
        for _ in range(1 + others):
            daemons.start(SLOWLY, 0.0, topics={"t": 1}, stop_at="end")
        daemons.world.pass_time(12.0)
        committed = daemons.stored(PARTITION)
        assert 0 < committed < 1000
        daemons.may_lack_topics_until = daemons.world.now + 60
        if again:
            daemons.recreate("t", 1)
        else:
            daemons.group.logs.delete("t")
        daemons.world.pass_time(40.0)
        assert [daemon.task.result() for daemon in daemons.daemons] == [0] * (1 + others)
        unseen = 100 if again else 0  # the last commit, of 100 records: the claim record is of the new topic
        (lost,) = set(logged := shortened(daemons))
        assert (len(logged), lost[::2]) == (1 + others, (PARTITION, 1000))
        assert committed - unseen <= lost[1] <= committed


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_has_read_a_deleted_topic_to_its_end_is_complete(again: bool, restarted: bool) -> None:
    """Also if a run without all its records fails. The topic is deleted while the run reads another one."""
    scene = replace(SLOWLY, reset="fail")
    with simulated_daemons(1, scene) as daemons:
        for each in (PARTITION, OTHER):
            daemons.group.logs.grow(each.topic, 1)
            daemons.group.ensemble.make(daemons.group.paths.offset(each), b"0")
        daemons.group.logs.burst(300)
        daemons.group.logs.stop()
        topics = {"t": 1, "tt": 1}
        daemon = daemons.start(scene, 0.0, topics=topics, stop_at="end", paused=["tt:0"])
        assert daemons.world.pass_time(60.0, lambda: daemons.stored(PARTITION) == daemons.group.logs.end(PARTITION))
        daemons.world.pass_time(2.0)
        if again:
            daemons.recreate("t", 1)
        else:
            daemons.group.logs.delete("t")
        daemons.world.pass_time(5.0)
        if restarted:
            daemons.stop(daemon)
            daemons.world.pass_time(5.0)
            daemon = daemons.start(scene, 0.0, topics=topics, stop_at="end")
        else:
            daemons.reload(daemon, "subscription", paused=())
        assert daemons.world.pass_time(90.0, daemon.task.done)
        assert (daemon.task.result(), daemons.stored(OTHER), shortened(daemons)) == (0, 300, [])


def shortened(daemons: Daemons) -> list[tuple[TopicPartition, int, int]]:
    return [
        (TopicPartition(each["topic"], each["partition"]), each["first"], each["until"])
        for each in daemons.group.events
        if each["event"] == SHORTENED
    ]
