"""Blocking calls in a simulated world: `anyio.run`, blocking portals and sleeps let its time pass.

What a program computes between such calls takes no time. Its processes end together when it is killed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, Generic, TypeVar
from unittest import mock

import anyio

from tests.support.simulated.group import SimulatedGroup
from tests.support.simulated.virtual_time import Process

T = TypeVar("T")

LIMIT: Final = 300.0
"""Seconds of the world that one call may take."""
_LOOK: Final = 0.01


class Killed(BaseException):
    """The program was killed while it waited."""


class Program:
    """A program that blocks. Its event loops are processes of the world."""

    def __init__(self, group: SimulatedGroup, name: str) -> None:
        self.killed = False
        self.processes: list[Process] = []
        self._group = group
        self._name = name

    def process(self) -> Process:
        self.processes.append(self._group.world.process(f"{self._name}/{len(self.processes)}"))
        return self.processes[-1]

    def kill(self) -> None:
        """As SIGKILL."""
        self.killed = True
        for process in self.processes:
            process.frozen = True
            self._group.network.cut(process, arrives=True)

    def end(self) -> None:
        """Cancel what still runs."""
        for process in self.processes:
            process.frozen = False
            for task in asyncio.all_tasks(process):
                task.cancel()
        self._group.world.pass_time(60.0, lambda: not any(map(asyncio.all_tasks, self.processes)))

    def wait(self, until: Callable[[], object], seconds: float = LIMIT) -> bool:
        """Let time pass until the condition holds; returns whether it did. Raises Killed."""
        passed = not self.killed and (
            bool(until()) or self._group.world.pass_time(seconds, lambda: self.killed or until(), every=_LOOK)
        )
        if self.killed:
            raise Killed
        return passed

    # -- what stands in for blocking functions

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `anyio.run`."""
        with self.portal() as portal:
            return portal.call(function, *arguments)

    @contextmanager
    def portal(self) -> Iterator[Portal]:
        """As `anyio.from_thread.start_blocking_portal`."""
        portal = Portal(self)
        yield portal
        assert self.wait(lambda: not asyncio.all_tasks(portal.process)), "a portal whose tasks do not end"


class Portal:
    """As `anyio.from_thread.BlockingPortal`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process = program.process()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.start_task_soon(function, *arguments).result()

    def start_task_soon(self, function: Callable[..., Any], *arguments: Any) -> Running[Any]:
        async def called() -> Any:
            found = function(*arguments)
            return await found if inspect.isawaitable(found) else found

        return Running(self.program, self.process.create_task(called()))

    @contextmanager
    def wrap_async_context_manager(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        entered: asyncio.Future[T] = self.process.create_future()
        left: asyncio.Future[None] = self.process.create_future()

        async def held() -> None:
            async with manager as found:
                entered.set_result(found)
                await left

        task = Running(self.program, self.process.create_task(held()))
        self.program.wait(lambda: entered.done() or task.done())
        if not entered.done():
            task.result()
        try:
            yield entered.result()
        except BaseException as error:
            if not self.program.killed:
                left.set_exception(error)
                task.result()
            raise
        left.set_result(None)
        task.result()


class Running(Generic[T]):
    """As a future of `concurrent.futures`."""

    def __init__(self, program: Program, task: asyncio.Task[T]) -> None:
        self._program = program
        self._task = task

    def done(self) -> bool:
        return self._task.done()

    def result(self) -> T:
        self.exception()
        return self._task.result()

    def exception(self, timeout: float = LIMIT) -> BaseException | None:
        if not self._program.wait(self._task.done, timeout):
            raise TimeoutError(f"{self._task} has not ended in {timeout} s")
        return self._task.exception()


@contextmanager
def blocking(program: Program) -> Iterator[None]:
    """`anyio.run` is the program's."""
    with mock.patch.object(anyio, "run", program.run):
        yield
