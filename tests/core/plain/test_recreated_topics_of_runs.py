"""Runs whose topics are deleted and created again."""

from __future__ import annotations

import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.storage import ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import CLAIM_RECORD_VERSION, ClaimRecord, encode_claim_record
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.simulated.clients import Clients
from tests.support.simulated.daemons import simulated_daemons
from tests.support.simulated.scene import Scene

PARTITION = TopicPartition("t", 0)


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
