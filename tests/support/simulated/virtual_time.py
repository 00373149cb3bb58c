"""A clock that advances only when no process has anything to do, and processes as event loops that run on it.

`World` owns the clock, the agenda of future events, and the processes. Each process is an asyncio loop of its own, so
one can be frozen, as by SIGSTOP: the others continue, and it finds the time gone when it resumes.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from functools import partial, wraps
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar
from unittest import mock

from kzconsumer import clock, connecting
from kzconsumer.streams.cursor import LOOK_SECONDS, StreamCursor
from kzconsumer.zookeeper import server_choice, session_life
from kzconsumer.zookeeper.heartbeat_and_lease import Instant
from kzconsumer.zookeeper.link import Link

P = TypeVar("P", bound=asyncio.BaseProtocol)

INFINITY = float("inf")
BEGINNING = 1000.0
"""Seconds on the clock of a new world."""
_LONGEST = 60.0
LAST_XID = 0x7FFFFFFF
"""Of a request to ZooKeeper."""
MANY_CANCELLED = 50
"""Timers that asyncio does not yet search for those that are cancelled: half of a hundred."""
MOST_TURNS = 100_000
"""Iterations of loops at one moment: more means that a task never waits."""


class Network(Protocol):
    """How processes reach each other."""

    async def connect(
        self, process: Process, factory: Callable[[], P], host: str, port: int
    ) -> tuple[asyncio.Transport, P]: ...


class _NoFiles(selectors.BaseSelector):
    """Nothing to wait for: everything that happens is on the agenda."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class Process(asyncio.SelectorEventLoop):
    """One process: its event loop."""

    # Of asyncio's loop.
    _ready: deque[Any]
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _clock_resolution: float

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(_NoFiles())
        self.world = world
        self.name = name
        self.number = number
        self.errors: list[dict[str, Any]] = []
        self.queued = INFINITY
        """When it is next in the queue of the world; not later than `due` unless it is frozen."""
        self._hooks = self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook  # type: ignore[attr-defined]
        self._frozen = False
        self._handlers: dict[int, Callable[[], object]] = {}
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def __repr__(self) -> str:
        return f"<Process {self.name}{' frozen' if self.frozen else ''}>"

    def time(self) -> float:
        return self.world.now

    # Nothing wakes it from outside, and a pair of sockets for each of a thousand is too much.
    def _make_self_pipe(self) -> None:
        self._csock = None

    def _close_self_pipe(self) -> None:
        pass

    @property
    def frozen(self) -> bool:
        return self._frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self._frozen = frozen
        self.world.queue(self)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *arguments: Any, context: Context | None = None
    ) -> asyncio.Handle:
        # As asyncio's, which looks first whether the loop is closed.
        handle = asyncio.Handle(callback, arguments, self, context)
        self._ready.append(handle)
        if self.queued > self.world.now:
            self.world.queue(self)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *arguments: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *arguments, context=context)
        if self.queued > when:
            self.world.queue(self)
        return handle

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], P], host: str, port: int, *, ssl: None = None, server_hostname: None = None
    ) -> tuple[asyncio.Transport, P]:
        return await self.world.network.connect(self, protocol_factory, host, port)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *arguments: Any) -> None:  # type: ignore[override]
        self._handlers[sig] = partial(callback, *arguments)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._handlers.pop(sig, None) is not None

    def send_signal(self, sig: int) -> bool:
        """As `os.kill`; False if the process does not handle it."""
        handler = self._handlers.get(sig)
        if handler is not None:
            self.call_soon(handler)
        return handler is not None

    @property
    def due(self) -> float:
        """When it next has something to do."""
        if self._ready:
            return self.world.now
        scheduled = self._scheduled
        return scheduled[0]._when if scheduled else INFINITY

    def turn(self) -> None:
        """Run what is ready now: `stop` and `run_forever`, in a third of the time."""
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(*self._hooks)
        try:
            self._run_once()
        finally:
            sys.set_asyncgen_hooks(None, None)
            asyncio._set_running_loop(None)

    def _run_once(self) -> None:
        """As asyncio's, which asks a selector, too, and drops timers that are cancelled when they are many."""
        if self._timer_cancelled_count > MANY_CANCELLED:
            super()._run_once()  # type: ignore[misc]
            return
        ready, scheduled = self._ready, self._scheduled
        end = self.world.now + self._clock_resolution
        while scheduled and ((first := scheduled[0])._cancelled or first._when < end):
            heapq.heappop(scheduled)._scheduled = False
            if first._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(first)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


class World:
    """See the module. All randomness comes from `random`, so a world is determined by its seed and its events."""

    network: Network

    def __init__(self, seed: int) -> None:
        self.now = BEGINNING
        self.wall_ahead = 0.0
        """Seconds by which the wall clock was set forward."""
        self.slept = 0.0
        """Seconds for which the machine was suspended: its clocks go on then, and the timers of loops do not."""
        self.random = Random(seed)
        self.processes: list[Process] = []
        self._begun = 0
        self._queue: list[tuple[float, int, Process]] = []  # of those that have something to do; the first is due
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def process(self, name: str) -> Process:
        self._begun += 1
        self.processes.append(Process(self, name, self._begun))
        return self.processes[-1]

    def queue(self, process: Process) -> None:
        """The process may have something to do earlier than before."""
        if not process.frozen and (due := process.due) < process.queued:
            process.queued = due
            heapq.heappush(self._queue, (due, process.number, process))

    def at(self, when: float, happens: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (max(when, self.now), self._number, happens))

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        self.at(self.now + seconds, happens)

    def pass_time(self, seconds: float, until: Callable[[], object] | None = None, every: float = 0.1) -> bool:
        """Let time pass, or until the condition, checked `every` so often, holds; returns whether it did."""
        end = self.now + seconds
        while until is not None and self.now < end:
            self._pass_to(min(end, self.now + every))
            if until():
                return True
        self._pass_to(end)
        return False

    def _pass_to(self, end: float) -> None:
        turns = 0
        while True:
            due, first = self._first()
            event = self._agenda[0][0] if self._agenda else INFINITY
            when = min(due, event)
            if when > end:
                self.now = end
                return
            if when > self.now:
                self.now, turns = when, 0
            turns += 1
            if turns > MOST_TURNS:
                raise AssertionError(f"{first} never waits")
            if event <= due:
                heapq.heappop(self._agenda)[2]()
            elif first is not None:
                first.turn()
                self._again(first)

    def _first(self) -> tuple[float, Process | None]:
        """When a process is due, and which; of several the oldest, and none if all wait for events."""
        while self._queue:
            due, _, process = self._queue[0]
            if process.queued == due and not process.frozen and process.due == due:
                return due, process
            heapq.heappop(self._queue)
            if process.queued == due:
                self._again(process)
        return INFINITY, None

    def _again(self, process: Process) -> None:
        process.queued = INFINITY
        self.queue(process)

    def end(self, process: Process) -> None:
        """Close the loop of a process whose tasks have ended."""
        self.processes.remove(process)
        process.run_until_complete(process.shutdown_asyncgens())
        process.close()


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that only waits, in a process of a world of its own, where it may last `_LONGEST` seconds."""

    @wraps(test)
    def run() -> None:
        world = World(0)
        process = world.process(test.__name__)
        task = process.create_task(test())
        with mock.patch.object(clock, "time", SimpleNamespace(clock_gettime=lambda _: world.now, CLOCK_BOOTTIME=0)):
            world.pass_time(_LONGEST, task.done)
        assert task.done(), f"has not ended in {_LONGEST:.0f} s"
        task.result()
        world.end(process)

    return run


@contextmanager
def clock_of(world: World) -> Iterator[None]:
    """The product's sessions use this world's clock and randomness: with the machine's, its load would cause faults."""

    def instant() -> Instant:
        return Instant(world.now + world.slept, world.now + world.slept + world.wall_ahead)

    allow, link = StreamCursor._allow_more, Link.__init__

    async def allow_more(self: StreamCursor) -> None:
        await allow(self)
        self._lot.allow(3600.0)  # of the machine's clock, which compiled code reads
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._lot.allow, 0.0)

    def used_link(self: Link, *arguments: Any, **more: Any) -> None:
        """Its next requests have the last numbers; then they begin again."""
        link(self, *arguments, **more)
        self._xid = LAST_XID - 3

    async def addresses(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    with (
        mock.patch.object(Link, "__init__", used_link),
        mock.patch.object(connecting, "addresses", addresses),
        mock.patch.object(
            clock, "time", SimpleNamespace(clock_gettime=lambda _: world.now + world.slept, CLOCK_BOOTTIME=0)
        ),
        mock.patch.object(server_choice, "instant", instant),
        mock.patch.object(server_choice, "random", world.random),
        mock.patch.object(session_life, "random", world.random),
        mock.patch.object(StreamCursor, "_allow_more", allow_more),
    ):
        yield
