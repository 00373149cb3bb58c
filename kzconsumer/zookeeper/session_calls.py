"""What waits for a reply: a caller's request with its future and its watch, or a request of the session itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from kzconsumer.errors import ConnectionLostError, KzConsumerError, ZooKeeperError
from kzconsumer.zookeeper import wire_frames
from kzconsumer.zookeeper.error_codes import OK, Handling, described, error_code
from kzconsumer.zookeeper.watch import Watch, WatchKind, WatchTable

R = TypeVar("R")


class Arming(NamedTuple):
    """The watch that a request sets: at which path of the server, in which list by reply code."""

    watch: Watch
    path: str
    kinds: Mapping[int, WatchKind]


class Asked(Generic[R]):
    """A caller's request, waiting for a connection or in flight. A caller that gives up cancels `outcome`."""

    def __init__(
        self,
        request: wire_frames.Request[R],
        loss: Callable[[str], KzConsumerError],
        arming: Arming | None = None,
        watches: WatchTable | None = None,
    ) -> None:
        self.request = request
        self.outcome: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._loss = loss
        self._arming = arming
        self._watches = watches

    def answered(self, reply: wire_frames.Reply) -> None:
        if self.outcome.done():
            return  # given up, and the watch with it
        try:
            result = wire_frames.result(self.request, reply)
        except ZooKeeperError as error:
            self._arm(reply.code)
            self.outcome.set_exception(error)
        else:
            self._arm(reply.code)
            if not self.outcome.done():  # the reply to a close ends every call, this one too
                self.outcome.set_result(result)

    def lost(self, reason: str) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(self._loss(reason))

    def _arm(self, code: int) -> None:
        if self._arming and self._watches and (kind := self._arming.kinds.get(code)):
            self._watches.arm(kind, self._arming.path, self._arming.watch)


class Own:
    """A request of the session itself; each connection gets its own."""

    def __init__(self, then: Callable[[], None], not_now: Callable[[], None]) -> None:
        """`not_now` is called instead of `then` if an overloaded server has not executed it."""
        self._then = then
        self._not_now = not_now

    def answered(self, reply: wire_frames.Reply) -> None:
        if reply.code == OK:
            self._then()
        elif error_code(reply.code).handling is Handling.REPEAT:
            self._not_now()
        else:
            raise ConnectionLostError(f"the server refuses to continue the session: {described(reply.code)}")

    def lost(self, reason: str) -> None:
        pass
