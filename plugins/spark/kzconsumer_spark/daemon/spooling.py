"""The spool files of the current batch and of the next one.

Those of the next batch are written ahead and taken by its `write`, or removed if it never comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import anyio
import anyio.to_thread

from kzconsumer.clock import now
from kzconsumer.sinks.interface import RangeData
from kzconsumer_spark.daemon.spool import write_spool
from kzconsumer_spark.daemon.spool_place import SpoolPlace
from kzconsumer_spark.pipe.messages import SpooledRange


class Spooled:
    """One batch's files, in a place of their own: a range whose claim was lost may be in the next batch too."""

    def __init__(self, place: SpoolPlace, files: tuple[SpooledRange, ...], seconds: float) -> None:
        self.place = place
        self.files = files
        self.seconds = seconds


class Spooling:
    """Files below `place`, which exists."""

    def __init__(self, place: SpoolPlace) -> None:
        self._place = place
        self._numbers = count()
        self._ahead: Spooled | None = None

    async def prepare(self, ranges: Sequence[RangeData]) -> None:
        """Write the files of the batch that comes next; those of one that never came are removed. Raises OSError."""
        await self._forget()
        self._ahead = await self._write(ranges)

    async def take(self, ranges: Sequence[RangeData]) -> Spooled:
        """The files of exactly these ranges, written now if they were not prepared. Raises OSError."""
        if self._ahead is not None:
            prepared = {(each.range, each.incarnation, each.epoch, each.records): each for each in self._ahead.files}
            # Not a file with records that were rejected since.
            found = [prepared.get((part.range, part.incarnation, part.epoch, part.records)) for part in ranges]
            files = tuple(each for each in found if each is not None)
            if len(files) == len(ranges):
                ahead, self._ahead = self._ahead, None
                return Spooled(ahead.place, files, ahead.seconds)
            await self._forget()
        return await self._write(ranges)

    async def fresh(self, ranges: Sequence[RangeData]) -> Spooled:
        """Files of these ranges, whatever is prepared. Raises OSError."""
        return await self._write(ranges)

    async def remove(self, spooled: Spooled) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(spooled.place.remove)

    async def _forget(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await self.remove(ahead)

    async def _write(self, ranges: Sequence[RangeData]) -> Spooled:
        began = now()
        place = self._place.below(str(next(self._numbers)))
        try:
            files = await anyio.to_thread.run_sync(_written, place, ranges)
        except BaseException:
            await self.remove(Spooled(place, (), 0.0))
            raise
        return Spooled(place, files, now() - began)


def _written(place: SpoolPlace, ranges: Sequence[RangeData]) -> tuple[SpooledRange, ...]:
    place.make()
    return write_spool(place, ranges)
