"""A destination that takes part in exactly once, and the replayable sink of each simulated daemon that writes to it.

`Destination` owns the ranges that it has taken. What a daemon has sent arrives even if the daemon is suspended
meanwhile, and perhaps if it is killed or cancelled. It may be taken though the daemon gets an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Self

import anyio

from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import Batch

if TYPE_CHECKING:
    from tests.support.simulated.daemon import SimulatedDaemon
    from tests.support.simulated.daemons import Daemons

ARRIVES_AFTER = 0.001
ANSWERS_WITHIN = 0.5
"""Seconds until it says which ranges it has, at most."""


class Destination:
    """See the module."""

    def __init__(self, daemons: Daemons) -> None:
        self._daemons = daemons
        self._taken: dict[RangeIdentity, str] = {}

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        return [each for each in ranges if each in self._taken]

    def take(self, batch: Batch, name: str) -> None:
        """What a daemon of this name has sent."""
        for before in batch.follows:
            if before not in self._taken:
                self._daemons.violated(f"{name} writes behind {before}, which is not there")
        for part in batch.ranges:
            if part.identity in self._taken:
                continue
            for other, by in self._taken.items():
                if other[:4] == part.identity[:4] and other.first < part.until and part.first < other.until:
                    self._daemons.violated(f"{name} writes {part.identity}, and {by} has written {other}")
            self._taken[part.identity] = name
            self._daemons.is_there(part)


class ReplayableSink:
    """Of one daemon."""

    fingerprint = "9f3c"
    remembers = True

    def __init__(self, daemon: SimulatedDaemon) -> None:
        self._daemon = daemon

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        await anyio.sleep(self._daemon.process.world.random.uniform(0, ANSWERS_WITHIN))
        return self._daemon.daemons.destination.has(ranges)

    async def write(self, batch: Batch) -> None:
        daemon, claims = self._daemon, self._daemon.daemons.claims.of(batch)
        world, answered = daemon.process.world, anyio.Event()
        fails, daemon.refuses = daemon.refuses, False
        daemon.refused |= fails
        taken = not fails or world.random.random() < 0.5
        survives, given_up = world.random.random() < 0.5, False
        if not batch.is_replay:
            daemon.daemons.check_due(daemon, batch)

        def arrives() -> None:
            if taken and (survives or not (given_up or daemon.killed)):
                daemon.daemons.destination.take(batch, daemon.process.name)
            daemon.process.call_soon(answered.set)

        world.after(max(daemon.pace, ARRIVES_AFTER), arrives)
        try:
            await answered.wait()
        except BaseException:
            given_up = True
            raise
        if fails:
            raise OSError("no answer")
        daemon.daemons.claims.wrote(daemon, batch, claims)
