"""Whether a sink is replayable, and its destination as claims, and the runner, ask it.

Owns no state; the daemon calls it. What the sink raises becomes SinkFailed here, as it does in the runner; so does an
answer that does not come, for a rebalance waits for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol, TypeVar, cast

import anyio

from kzconsumer.errors import KzConsumerError, PluginError, SinkFailed
from kzconsumer.model import RangeIdentity
from kzconsumer.offsets.destination import Destination
from kzconsumer.sinks.interface import Sink, wanted_by

# Seconds. Members that die in the middle leave files to be put in place, which asking does, on a disk that may be slow.
PATIENCE = 60.0


_Answer = TypeVar("_Answer")


class SinkDestination(Destination, Protocol):
    """A destination as the sink's runner asks it."""

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """See `kzconsumer.sinks.interface.Sink`. Of a sink that has none of it: whether the range is not published."""
        ...


def destination_of(name: str, sink: Sink) -> SinkDestination | None:
    """What the sink declares by `fingerprint`, `has`, `set_aside`; None without, or with an empty fingerprint.

    Raises PluginError for a sink of bytes: nobody counts the records of its ranges, so no plan can tell them.
    """
    if not getattr(sink, "fingerprint", ""):
        return None
    if wanted_by(sink) != "columns":
        raise PluginError(f"{sink!r} wants bytes: only a sink of columns can be replayable")
    return _Asked(name, cast(Destination, sink))


class _Asked:
    def __init__(self, name: str, sink: Destination) -> None:
        self._name = name
        self._sink = sink

    def __str__(self) -> str:
        described = getattr(self._sink, "destination", "")
        return f"sink {self._name} ({described})" if described else f"sink {self._name}"

    @property
    def fingerprint(self) -> str:
        return self._sink.fingerprint

    @property
    def remembers(self) -> bool:
        return bool(getattr(self._sink, "remembers", False))

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return await self._answer(self._sink.has(ranges))

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        if not hasattr(self._sink, "set_aside"):
            return part not in await self.has([part])
        return await self._answer(cast(SinkDestination, self._sink).set_aside(part, records))

    async def _answer(self, answer: Awaitable[_Answer]) -> _Answer:
        try:
            with anyio.fail_after(PATIENCE):
                return await answer
        except TimeoutError as error:
            reason = f"no answer within {PATIENCE:g} s whether planned ranges are published"
            raise SinkFailed(f"sink {self._name}: {reason}") from error
        except KzConsumerError:
            raise
        except Exception as error:
            raise SinkFailed(f"sink {self._name}: {type(error).__name__}: {error}") from error
