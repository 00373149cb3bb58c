"""Processes that share a directory, run one file-system call at a time in an order that a test chooses, or killed.

Each actor is a thread that waits before every call; calls of other threads pass. A killed actor's next call raises, as
does each after it, and its file locks are released: it leaves what a killed process leaves.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from kzconsumer import own_files

_CALLS = ("link", "unlink", "rename", "replace", "mkdir", "rmdir", "open", "scandir", "listdir", "stat")


class Killed(BaseException):
    """The process has been killed."""


class Actor:
    def __init__(self, name: str, run: Callable[[], object], back: threading.Semaphore) -> None:
        self.name = name
        self.over = False
        self.error: BaseException | None = None
        self.calls = 0
        self.killed = False
        self._run = run
        self._back = back
        self._go = threading.Semaphore(0)
        self._locks: list[int] = []
        self.thread = threading.Thread(target=self._body, daemon=True)

    def __repr__(self) -> str:
        return f"Actor({self.name}, {self.calls} calls{', killed' if self.killed else ''})"

    def step(self) -> None:
        """Let it continue to its next call, or its end."""
        self._go.release()
        self._back.acquire()

    def wait(self, call: str) -> None:
        if not self.killed:
            self._back.release()
            self._go.acquire()
            self.calls += 1
        if self.killed:
            raise Killed(f"{self.name} at {call}")

    def opened(self, path: object, descriptor: int) -> None:
        if str(path).endswith(".lock"):
            self._locks.append(descriptor)

    def closed(self, descriptor: int) -> None:
        if descriptor in self._locks:
            self._locks.remove(descriptor)

    def _body(self) -> None:
        self._go.acquire()
        try:
            self._run()
        except Killed:
            for descriptor in self._locks:
                with suppress(OSError):
                    status = os.fstat(descriptor)
                    own_files._held.pop((status.st_dev, status.st_ino), None)
                    os.close(descriptor)
        except BaseException as error:
            self.error = error
        self.over = True
        self._back.release()


class Stepped:
    def __init__(self) -> None:
        self._actors: dict[int, Actor] = {}
        self._back = threading.Semaphore(0)

    def __repr__(self) -> str:
        return f"Stepped({list(self._actors.values())})"

    def run(
        self,
        programs: Mapping[str, Callable[[], object]],
        choose: Callable[[Sequence[Actor]], Actor],
    ) -> list[Actor]:
        """Until all have ended. `choose` returns whose call is next, and may set `killed`. Raises their exceptions."""
        actors = [Actor(name, program, self._back) for name, program in programs.items()]
        for actor in actors:
            actor.thread.start()
            assert actor.thread.ident is not None
            self._actors[actor.thread.ident] = actor
        while left := [actor for actor in actors if not actor.over]:
            choose(left).step()
        for actor in actors:
            actor.thread.join()
            if actor.error is not None:
                raise actor.error
        self._actors.clear()
        return actors

    def here(self) -> Actor | None:
        return self._actors.get(threading.get_ident())


@contextmanager
def stepped_files() -> Iterator[Stepped]:
    stepped = Stepped()

    def waiting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_call(*arguments: Any, **named: Any) -> Any:
            # A lock is taken in one step: others would wait for what guards the locks of this process.
            if (actor := stepped.here()) is None or own_files._guard.locked():
                found = call(*arguments, **named)
                if actor is not None and name == "open" and isinstance(found, int):
                    actor.opened(arguments[0], found)
                return found
            actor.wait(name)
            found = call(*arguments, **named)
            if name == "open" and isinstance(found, int):
                actor.opened(arguments[0], found)
            return found

        return wait_and_call

    real_close = os.close

    def close(descriptor: int) -> None:
        if (actor := stepped.here()) is not None:
            actor.closed(descriptor)
        real_close(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "close", close)
        for name in _CALLS:
            patch.setattr(os, name, waiting(name, getattr(os, name)))
        patch.setattr(io, "open", waiting("io.open", io.open))
        yield stepped
