"""Which event triggers which watches, and what a new connection arms again."""

from __future__ import annotations

import inspect

import anyio
import anyio.lowlevel
import pytest

from kzconsumer.errors import ConnectionLostError, KzConsumerError, SessionExpiredError
from kzconsumer.zookeeper.watch_table import EventType, Watch, WatchKind, WatchTable
from kzconsumer.zookeeper.watches import AT_ONCE, outcomes


def armed(table: WatchTable, kind: WatchKind, path: str) -> Watch:
    watch = Watch(path)
    table.arm(kind, path, watch)
    return watch


@pytest.mark.parametrize(
    ("event", "fires"),
    [
        (EventType.CREATED, {WatchKind.EXIST, WatchKind.DATA}),
        (EventType.DATA_CHANGED, {WatchKind.EXIST, WatchKind.DATA}),
        (EventType.CHILDREN_CHANGED, {WatchKind.CHILD}),
        (EventType.DELETED, set(WatchKind)),
    ],
)
def test_an_event_triggers_the_matching_watches_of_its_path_once(event: EventType, fires: set[WatchKind]) -> None:
    table = WatchTable()
    watches = {kind: [armed(table, kind, "/a"), armed(table, kind, "/a")] for kind in WatchKind}
    other = {kind: armed(table, kind, "/b") for kind in WatchKind}
    calls: list[WatchKind] = []
    for kind, pair in watches.items():
        for watch in pair:
            watch.add_callback(lambda kind=kind: calls.append(kind))  # type: ignore[misc]
    table.fire(event, "/a")
    table.fire(event, "/a")
    assert {kind for kind, pair in watches.items() if all(watch.fired for watch in pair)} == fires
    assert sorted(calls, key=str) == sorted([*fires, *fires], key=str)
    assert not any(watch.fired for watch in other.values())


def test_a_callback_added_after_the_event_runs_at_once() -> None:
    table, calls = WatchTable(), []
    watch = armed(table, WatchKind.DATA, "/a")
    table.fire(EventType.DELETED, "/a")
    watch.add_callback(lambda: calls.append(1))
    assert calls == [1]


def test_a_callback_that_raises_does_not_affect_others() -> None:
    table, calls = WatchTable(), []
    first, second = armed(table, WatchKind.DATA, "/a"), armed(table, WatchKind.DATA, "/a")

    def fail() -> None:
        raise RuntimeError

    for watch in (first, second):
        watch.add_callback(fail)
        watch.add_callback(lambda: calls.append(1))
    table.fire(EventType.DATA_CHANGED, "/a")
    assert calls == [1, 1]


def test_a_cancelled_watch_is_forgotten() -> None:
    table, calls = WatchTable(), []
    watch, stays = armed(table, WatchKind.CHILD, "/a"), armed(table, WatchKind.CHILD, "/b")
    watch.add_callback(lambda: calls.append(1))
    watch.cancel()
    watch.cancel()
    table.fire(EventType.CHILDREN_CHANGED, "/a")
    assert not calls
    assert not watch.fired
    assert [chunk[WatchKind.CHILD] for chunk in table.chunks(1000)] == [["/b"]]
    assert not stays.fired


async def test_the_end_wakes_waiters_and_calls_no_callback() -> None:
    table, calls = WatchTable(), []
    watch = armed(table, WatchKind.EXIST, "/a")
    watch.add_callback(lambda: calls.append(1))
    table.end("session 0x1: expired")
    with pytest.raises(SessionExpiredError, match="0x1"):
        await watch.wait()
    assert not calls
    assert list(table.chunks(1000)) == []


def test_each_path_is_in_exactly_one_chunk_below_the_limit() -> None:
    table = WatchTable()
    expected = {kind: [f"/{kind.value}/{number:04}" for number in range(50)] for kind in WatchKind}
    for kind, paths in expected.items():
        for path in paths:
            armed(table, kind, path)
            armed(table, kind, path)
    chunks = list(table.chunks(200))
    assert len(chunks) > 3
    assert all(sum(len(path) for paths in chunk.values() for path in paths) <= 200 for chunk in chunks)
    assert {kind: [path for chunk in chunks for path in chunk[kind]] for kind in WatchKind} == expected


def test_a_path_above_the_limit_is_a_chunk_of_its_own() -> None:
    table = WatchTable()
    for path in ("/a", "/" + "x" * 500, "/b"):
        armed(table, WatchKind.DATA, path)
    assert [len(chunk[WatchKind.DATA]) for chunk in table.chunks(100)] == [1, 1, 1]


MANY = 3 * AT_ONCE + 1


class Calls:
    def __init__(self) -> None:
        self.under_way = self.most = 0

    async def call(self, number: int) -> int:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(number % 3):
                await anyio.lowlevel.checkpoint()
        finally:
            self.under_way -= 1
        if number % 7 == 0:
            raise ConnectionLostError(str(number))
        return number


async def test_results_and_errors_are_in_the_order_of_the_calls() -> None:
    calls = Calls()
    found = await outcomes([calls.call(number) for number in range(MANY)])
    assert [str(each) if isinstance(each, KzConsumerError) else each for each in found] == [
        str(number) if number % 7 == 0 else number for number in range(MANY)
    ]


@pytest.mark.parametrize("at_once", [None, 4])
async def test_calls_are_not_begun_all_at_once(at_once: int | None) -> None:
    """To send 10,000 requests takes seconds, in which the event loop does nothing for the session."""
    calls = Calls()
    await outcomes([calls.call(number) for number in range(MANY)], *([at_once] if at_once else []))
    assert 1 < calls.most <= (at_once or AT_ONCE)


async def fails() -> int:
    raise ValueError


async def test_calls_that_were_not_begun_are_closed() -> None:
    calls = [Calls().call(number) for number in range(MANY)]
    with pytest.raises(ExceptionGroup):
        await outcomes([fails(), *calls])
    assert {inspect.getcoroutinestate(call) for call in calls} == {inspect.CORO_CLOSED}
