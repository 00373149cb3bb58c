"""The destination of a replayable sink: its errors, and answers that take too long, are raised as SinkError."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol, TypeVar

import anyio

from kzconsumer.errors import SinkError
from kzconsumer.model import RangeIdentity
from kzconsumer.offsets.destination import Destination
from kzconsumer.sinks.capabilities import Capabilities
from kzconsumer.sinks.failures import sink_failures

# Seconds. `has` may first publish the files of a member that died, on a slow disk.
PATIENCE = 60.0

_Answer = TypeVar("_Answer")


class SinkDestination(Destination, Protocol):
    """A destination as the sink's runner asks it, also if the sink cannot set ranges aside."""

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """See `kzconsumer.sinks.interface.SettingAside`; otherwise whether the range is unpublished."""
        ...


def destination_of(name: str, can: Capabilities) -> SinkDestination | None:
    """None if the sink is not replayable."""
    return _Asked(name, can.destination, can) if can.destination is not None else None


class _Asked:
    def __init__(self, name: str, sink: Destination, can: Capabilities) -> None:
        self._name = name
        self._sink = sink
        self._can = can

    def __str__(self) -> str:
        described = self._can.described()
        return f"sink {self._name} ({described})" if described else f"sink {self._name}"

    @property
    def fingerprint(self) -> str:
        return self._sink.fingerprint

    @property
    def remembers(self) -> bool:
        return self._can.remembers()

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return await self._answer(self._sink.has(ranges))

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        if self._can.set_aside is None:
            return part not in await self.has([part])
        return await self._answer(self._can.set_aside(part, records))

    async def _answer(self, answer: Awaitable[_Answer]) -> _Answer:
        with sink_failures(self._name):
            with anyio.move_on_after(PATIENCE):
                return await answer
            raise SinkError(f"sink {self._name}: no answer within {PATIENCE:g} s whether planned ranges are published")
