"""The simulated ensemble answers like a real server: the same requests to both, through the product's own session.

Compared are results, refusals, stats, the order of zxids, and which watches are triggered in which order. Not compared:
what a session receives while it loses its connection.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kzconsumer.errors import KzConsumerError, MultiFailedError
from kzconsumer.zookeeper.operations import AclEntry, Check, ConnectString, Create, Delete, Node, SetData, Stat
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watch_table import Watch
from kzconsumer_sandbox.servers.kafka_servers import ZooKeeperServer
from tests.support.extent import extent
from tests.support.simulated.ensemble import Ensemble
from tests.support.simulated.network import SimulatedNetwork
from tests.support.simulated.virtual_time import World, clock_of

SESSIONS = 2
_NUMBERS = itertools.count()

PATHS = st.sampled_from(("/a", "/a/b", "/a/b", "/d"))
VERSIONS = st.sampled_from((-1, -1, -1, 0, 1))
DATA = st.sampled_from((b"", b"x", b"yy"))
ACLS = st.sampled_from(((), (AclEntry(31, "world", "anyone"), AclEntry(1, "ip", "127.0.0.9"))))
OPERATIONS = st.one_of(
    st.builds(Create, PATHS, DATA, st.booleans(), acl=ACLS),
    st.builds(SetData, PATHS, DATA, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)


class Step(NamedTuple):
    session: int
    call: str
    arguments: tuple[Any, ...]


WRITES = st.one_of(
    st.tuples(st.just("create"), st.tuples(PATHS, DATA, st.booleans())),
    st.tuples(st.just("set"), st.tuples(PATHS, DATA, VERSIONS)),
    st.tuples(st.just("delete"), st.tuples(PATHS, VERSIONS)),
)
READS = st.tuples(
    st.sampled_from(("get", "exists", "acl", "children", "watch_data", "watch_exists", "watch_children")),
    st.tuples(PATHS),
)
MULTIS = st.tuples(st.just("multi"), st.tuples(st.lists(OPERATIONS, min_size=1, max_size=4)))
ENSURES = st.tuples(st.just("ensure"), st.tuples(PATHS))
WHO = st.integers(0, SESSIONS - 1)
STEPS = st.builds(lambda who, what: Step(who, *what), WHO, st.one_of(WRITES, READS, READS, MULTIS, ENSURES))


class Player:
    """Plays a script and records what each session receives, in order. Sessions are not ordered among each other."""

    def __init__(self, sessions: Sequence[ZooKeeperSession]) -> None:
        self.sessions = sessions
        self.seen: list[list[object]] = [[] for _ in sessions]
        self._zxids: set[int] = set()
        self._watches = 0

    async def play(self, script: Sequence[Step]) -> list[list[object]]:
        for step in script:
            self.seen[step.session].append(await self._outcome(step))
            for session, seen in zip(self.sessions, self.seen, strict=True):
                await session.sync()  # its events have arrived when it is answered
                seen.append(step)
        await self.sessions[1].close()
        await self.sessions[0].sync()
        self.seen[0].append(await self._outcome(Step(0, "children", ("/",))))
        ranks = {zxid: rank for rank, zxid in enumerate(sorted(self._zxids))}
        return [
            [(ranks[each.czxid], ranks[each.mzxid]) if isinstance(each, Stat) else each for each in seen]
            for seen in self.seen
        ]

    async def _outcome(self, step: Step) -> object:
        session = self.sessions[step.session]
        try:
            if step.call == "create":
                path, data, ephemeral = step.arguments
                await session.create(path, data, ephemeral=ephemeral)
                return None
            call: Callable[..., Awaitable[object]] = getattr(session, step.call)
            return self._plain(await call(*step.arguments), self.seen[step.session])
        except MultiFailedError as error:
            return error.index, type(error.error).__name__, str(error)
        except KzConsumerError as error:
            return type(error).__name__, str(error)

    def _plain(self, result: object, seen: list[object]) -> object:
        match result:
            case Node(data, stat):
                return data, self._plain(stat, seen)
            case Stat():
                self._zxids |= {result.czxid, result.mzxid}
                seen.append(result)
                owners = [0, *(session.id for session in self.sessions)]
                return result.version, result.cversion, owners.index(result.ephemeral_owner), result.num_children
            case (found, Watch() as watch):
                self._watches += 1
                output = f"watch {self._watches} of {watch.path}"
                watch.add_callback(lambda: seen.append(output))
                return self._plain(found, seen)
            case list():
                return [self._plain(each, seen) for each in result]
        return result


async def _play(connects: Sequence[str], script: Sequence[Step]) -> list[list[object]]:
    async with AsyncExitStack() as exits:
        sessions = [
            await exits.enter_async_context(ZooKeeperSession(ConnectString.parse(connect), 10.0))
            for connect in connects
        ]
        await sessions[0].ensure("/")
        await sessions[0].ensure("/a")
        await sessions[1].sync()
        return await Player(sessions).play(script)


def _simulated(seed: int, script: Sequence[Step]) -> list[list[object]]:
    world = World(seed)
    SimulatedNetwork(Ensemble(world, lag=(0.0, 0.05)))
    process = world.process("player")
    with clock_of(world):
        task = process.create_task(_play(["zk0:2181,zk1:2181/x", "zk1:2181,zk2:2181/x"], script))
        assert world.pass_time(60, task.done, every=0.5)
        assert not process.errors
        world.end(process)
    return task.result()


@pytest.mark.timeout(300)
def test_the_same_answers_and_events(zookeeper: ZooKeeperServer, unique: str) -> None:
    @settings(max_examples=min(settings().max_examples, extent(25, 1000)), suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 1000), st.lists(STEPS, min_size=15, max_size=40))
    def compare(seed: int, script: list[Step]) -> None:
        chroot = f"{zookeeper.connect}/{unique}-{next(_NUMBERS)}"
        assert _simulated(seed, script) == asyncio.run(_play([chroot, chroot], script))

    compare()
