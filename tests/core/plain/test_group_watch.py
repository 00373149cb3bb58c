"""The view of the whole group: rates of commits, what is left out, and why a reading failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from kzconsumer.errors import ConnectionLostError
from kzconsumer.group.group_overview import OverviewPartition
from kzconsumer.lag.partition import RATED, Why
from kzconsumer.member import Member
from kzconsumer.model import TopicPartition
from kzconsumer.registry.nodes import Topic
from kzconsumer.status import group_watch
from kzconsumer.status.group_watch import GroupStatus, GroupWatch
from kzconsumer.status.partition_health import INTERVAL
from tests.support.simulated.virtual_time import World, clock_of

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Group:
    """A member whose group has these partitions. `committed` of this moment; `fault` is raised by the next readings."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions: tuple[int, ...] = (0, 1)
        self.committed: dict[TopicPartition, int] = {}
        self.fault: Exception | None = None
        self.hangs = False
        self.joined = True
        self.readings = 0

    @property
    def member(self) -> Member | None:
        topics = {"orders": Topic(self.partitions, 1)}
        group = (SimpleNamespace(topics=topics),) if self.joined else None
        return cast(Member, SimpleNamespace(group=group, overview=self))

    async def read(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, OverviewPartition]:
        self.readings += 1
        if self.hangs:
            await anyio.sleep_forever()
        if self.fault is not None:
            raise self.fault
        return {
            each: OverviewPartition(
                "m-0" if each == A else None, self.committed.get(each), 100 if each == A else Why("no leader")
            )
            for each in partitions
        }


def play(script: Any) -> None:
    world = World(0)
    process = world.process("daemon")
    group = Group(world)

    async def run() -> None:
        watch = GroupWatch(lambda: group.member)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            await script(group, watch)
            tasks.cancel_scope.cancel()

    with clock_of(world):
        task = process.create_task(run())
        assert world.pass_time(3600.0, task.done)
        world.end(process)
    task.result()


def rates(status: GroupStatus) -> list[float | None]:
    return [each.rate for each in status.partitions]


def test_rates_are_those_of_the_last_looks() -> None:
    """Of constant commits the same at every look; of others those within as many looks as are kept."""

    async def script(group: Group, watch: GroupWatch) -> None:
        began = group.world.now
        for number in range(2 * RATED):
            group.committed = {A: round(10 * (group.world.now - began)), B: 7}
            status = await watch.present()
            assert status.at is not None
            if number == 0:
                assert rates(status) == [None, None], "of one look nothing is known"
            else:
                assert rates(status) == [pytest.approx(10, rel=0.05), 0.0]
            await anyio.sleep(INTERVAL * 1.01)
        group.committed = {A: 0, B: 7}
        assert rates(await watch.present()) == [0.0, 0.0], "offsets that were set back are no negative rate"
        before = group.world.now
        for _ in range(RATED):
            await anyio.sleep(INTERVAL * 1.01)
            group.committed = {A: round(4 * (group.world.now - before)), B: 7}
            status = await watch.present()
        assert rates(status) == [pytest.approx(4, rel=0.05), 0.0], "what was before is forgotten"

    play(script)


def test_a_rate_is_of_no_time_in_which_nobody_asked() -> None:
    async def script(group: Group, watch: GroupWatch) -> None:
        for _ in range(2):
            group.committed = {A: 5}
            assert rates(await watch.present())[1] is None, "nothing is committed"
            await anyio.sleep(INTERVAL * 1.01)
        await anyio.sleep(3 * INTERVAL)
        group.committed = {A: 1005, B: 3}
        assert rates(await watch.present()) == [None, None]
        await anyio.sleep(INTERVAL * 1.01)
        group.committed = {A: 1005, B: 4}
        first, second = rates(await watch.present())
        assert first == 0.0
        assert second == pytest.approx(1 / (INTERVAL * 1.01), rel=0.05)

    play(script)


def test_partitions_are_shown_up_to_a_number_with_their_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_watch, "MOST", 2)

    async def script(group: Group, watch: GroupWatch) -> None:
        for count in (1, 2, 5):
            group.partitions = tuple(range(count))
            group.committed = {A: 60, B: 1}
            status = await watch.present()
            assert [each.partition for each in status.partitions] == list(range(min(count, 2)))
            assert status.left_out == max(0, count - 2)
            one = status.partitions[0]
            assert (one.owner, one.committed, one.end, one.lag, one.why) == ("m-0", 60, 100, 40, None)
            if count > 1:
                other = status.partitions[1]
                assert (other.owner, other.committed, other.end, other.lag, other.why) == (
                    None,
                    1,
                    None,
                    None,
                    "no leader",
                )
            await anyio.sleep(INTERVAL * 1.01)

    play(script)


def test_why_a_reading_failed_stands_beside_the_last_one_until_the_next() -> None:
    async def script(group: Group, watch: GroupWatch) -> None:
        group.joined = False
        status = await watch.present()
        assert (status.at, status.reason) == (None, "not a member of the group at the moment")
        group.joined = True
        good = await watch.present()
        assert (good.reason, len(good.partitions)) == (None, 2)
        for fault, hangs, reason in (
            (ConnectionLostError("zk1: gone"), False, "zk1: gone"),
            (None, True, "ZooKeeper or the brokers do not answer"),
            (ValueError("a bug"), False, "internal error, see the log"),
        ):
            await anyio.sleep(INTERVAL * 1.01)
            group.fault, group.hangs = fault, hangs
            status = await watch.present()
            assert (status.at, status.reason, status.partitions) == (good.at, reason, good.partitions)
            assert reason.encode() in watch.encoded
        group.fault, group.hangs = None, False
        await anyio.sleep(INTERVAL * 1.01)
        status = await watch.present()
        assert status.reason is None
        assert status.at is not None
        assert status.at > (good.at or 0)
        assert await watch.present() is status, "it is not read again within the interval"

    play(script)


def test_a_group_is_read_once_an_interval_however_often_it_is_asked_for() -> None:
    async def script(group: Group, watch: GroupWatch) -> None:
        for _ in range(round(10 * INTERVAL / 0.1)):
            watch.ask()
            await anyio.sleep(0.1)
        assert group.readings in (10, 11)

    play(script)
