"""What waits for a reply: a caller's request with its future and its watch, or a request of the session itself.

Each owns its own outcome and nothing else. Made by session_life, answered or lost by link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from kzconsumer.errors import ConnectionLost, KzConsumerError, ZooKeeperError
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.watch import Watch, WatchKind, WatchTable

R = TypeVar("R")


class Arming(NamedTuple):
    """The watch a request leaves on the server: at which path of the server's, on which list for which reply code."""

    watch: Watch
    path: str
    kinds: Mapping[int, WatchKind]


class Asked(Generic[R]):
    """A caller's request: waiting for a connection, then in flight. A caller that gives up cancels `outcome`."""

    def __init__(
        self,
        request: wire.Request[R],
        loss: Callable[[str], KzConsumerError],
        arming: Arming | None = None,
        watches: WatchTable | None = None,
    ) -> None:
        self.request = request
        self.outcome: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._loss = loss
        self._arming = arming
        self._watches = watches

    def __repr__(self) -> str:
        return f"<Asked {self.request.path} {len(self.request.body)} bytes>"

    def answered(self, reply: wire.Reply) -> None:
        if self.outcome.done():
            return  # given up: nobody wants the watch either
        try:
            result = wire.result(self.request, reply)
        except ZooKeeperError as error:
            self._arm(reply.code)
            self.outcome.set_exception(error)
        else:
            self._arm(reply.code)
            if not self.outcome.done():  # reading the reply to a close ends every call, this one too
                self.outcome.set_result(result)

    def lost(self, reason: str) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(self._loss(reason))

    def _arm(self, code: int) -> None:
        if self._arming and self._watches and (kind := self._arming.kinds.get(code)):
            self._watches.arm(kind, self._arming.path, self._arming.watch)


class Own:
    """A request of the session itself. Lost with its connection; the next one gets its own."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def answered(self, reply: wire.Reply) -> None:
        if reply.code != wire.OK:
            raise ConnectionLost(f"the server refuses to go on with the session ({reply.code})")
        self._then()

    def lost(self, reason: str) -> None:
        pass
