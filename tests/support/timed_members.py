"""Members in this process that record when each message arrived, and the group's owners.

Topic and group have the same name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio

from kzconsumer import clock
from kzconsumer.consumer import ConsumerConnector, KafkaStream
from kzconsumer.sessions import Sessions
from kzconsumer.zookeeper.session import Lease
from kzconsumer.zookeeper.session_life import SessionState
from tests.support.members import sessions_of, settings
from tests.support.steady_flow import Delivery, Flow, Owners, out_of_turn, records
from tests.support.zookeeper_sessions import session, until


class Member:
    """In this process; records when each message arrived, and spends `work` seconds on it."""

    def __init__(self, consumer: ConsumerConnector, work: float) -> None:
        self._consumer = consumer
        self._work = work
        self.delivered: list[Delivery] = []

    @property
    def consumer(self) -> str:
        return self._consumer.consumer

    @property
    def lease(self) -> Lease:
        return sessions_of(self._consumer).lease

    @property
    def server(self) -> tuple[str, int] | None:
        """The ZooKeeper server it is connected to."""
        session = self.lease.session
        return session.server if session else None

    def when(self, state: SessionState) -> list[float]:
        """Filled with the times at which its current session enters the state, from now on."""
        times: list[float] = []
        session = self.lease.session
        assert session is not None
        session.listeners.append(lambda entered: times.append(clock.now()) if entered is state else None)
        return times

    def longest_gap(self, since: float) -> float:
        """Seconds without a delivery."""
        times = [since, *(each.at for each in self.delivered if each.at > since)]
        return max(later - earlier for earlier, later in pairwise(times))

    async def read(self, stream: KafkaStream) -> None:
        async for message in stream:
            self.delivered.append(Delivery(clock.now(), message.partition, message.offset))
            if self._work:
                await anyio.sleep(self._work)


@asynccontextmanager
async def member(
    connect: str, group: str, name: str, timeout: float, *, work: float = 0.0, lease: Lease | None = None
) -> AsyncIterator[Member]:
    """`<group>_<name>`, of the topic of the group's name, until the block ends."""
    configured = settings(
        connect,
        group,
        zookeeper={"connect": connect, "session_timeout": f"{timeout}s"},
        group={"id": group, "consumer_id": name},
        offsets={"commit_interval": "500ms"},
    )
    sessions = Sessions(configured, lease=lease)
    async with sessions.running(), anyio.create_task_group() as tasks:
        consumer = ConsumerConnector(sessions)
        reading = Member(consumer, work)
        (stream,) = (await consumer.create_message_streams({group: 1}))[group]
        tasks.start_soon(reading.read, stream)
        yield reading
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def watched(connect: str, group: str, partitions: int) -> AsyncIterator[Owners]:
    """The group's owners, of the topic of the same name."""
    owners = Owners()
    async with session(connect, 20) as witness, anyio.create_task_group() as tasks:
        tasks.start_soon(owners.watch, witness, group, group, partitions)
        yield owners
        tasks.cancel_scope.cancel()


async def drained(flow: Flow, *members: Member) -> None:
    """Until everything the flow has sent was delivered by some member."""
    await until(lambda: flow.ended and records(d for m in members for d in m.delivered).keys() >= flow.acknowledged, 30)
    assert not flow.refused


def in_turn(owners: Owners, *members: Member) -> bool:
    return not out_of_turn({each.consumer: each.delivered for each in members}, owners)


def shared_evenly(owners: Owners, partitions: int, *members: Member) -> bool:
    return all(len(owners.holds(each.consumer)) == partitions // len(members) for each in members)
