"""Batches that cannot be used: what happens to them (`[fetch] on_corrupt`), and the way over them.

A batch is corrupt if a checksum or its framing is wrong, and cut off if it is larger than may be fetched. Every loss is
logged as an error with its offsets. A batch that is set aside is on disk before later records are delivered.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from kzconsumer.durable_files import create_same
from kzconsumer.errors import (
    KzConsumerError,
)
from kzconsumer.fetcher.fetch_rules import Unusable
from kzconsumer.file_names import named_after
from kzconsumer.logs.logger import get_logger
from kzconsumer.records import compression as L
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.threads import in_thread

log = get_logger("kzconsumer.fetcher")


class CorruptPolicy:
    """The policy of one member: fail, skip, or set the batch aside in a directory."""

    def __init__(self, settings: FetchSettings) -> None:
        self._fails = settings.on_corrupt == "fail"
        sets_aside = settings.on_corrupt == "quarantine"
        self._directory = Path(settings.quarantine) if sets_aside and settings.quarantine else None

    async def way_over(
        self,
        found: Unusable,
        records: memoryview,
        end_of_log: int,
        leads_on: Callable[[int], Awaitable[bool]],
        end: int | None = None,
    ) -> int | None:
        """The offset to go on at, after the loss is logged and the batch set aside; None if more bytes are needed.

        `leads_on` asks the broker whether there is something to read at an offset, for the end of a batch that is cut
        off is unknown. `end`: of the range that is read, if it has one. Offsets of the batch behind it are left to who
        reads the next range, so that each offset is reported as lost once. Raises KzConsumerError if the stream has to
        fail.
        """
        if self._fails:
            raise found.error
        way = jump(found, records, end_of_log)
        if way is NoJump.MORE:
            return None
        if not isinstance(way, Jump) or (found.cut_off and not await leads_on(way.until)):
            raise without_way(found)
        kept = await self._set_aside(found, records[way.start : way.end])
        until = way.until if end is None else min(way.until, end)
        log.error(
            "corrupt batch skipped, its records are lost",
            **found.topic_partition._asdict(),
            first=found.offset,
            until=until,
            reason=found.reason,
            kept=str(kept) if kept else None,
        )
        return until

    async def _set_aside(self, found: Unusable, data: memoryview) -> Path | None:
        if self._directory is None:
            return None
        at = found.topic_partition
        # Its own offset names the batch, wherever the range begins that is read: two ranges may share a batch. (A
        # compressed message of the old formats has that of its last record.)
        offset = int.from_bytes(data[:8], "big", signed=True)
        path = self._directory / named_after(at.topic, lambda topic: f"{topic}-{at.partition}-{offset}.bin")
        try:
            # It may exist already: the batch was met before, and its offset was not committed in time.
            await in_thread(create_same, path, data)
        except OSError as error:
            raise KzConsumerError(
                f"{found.topic_partition}: the corrupt batch at offset {found.offset} cannot be set aside: {error}"
            ) from error
        return path


# The offset to continue at after a batch that cannot be used, found by the framing alone.
#
# Kafka's own consumer leaves this to the application, which may seek (`KafkaException: ... please seek past the
# record to continue consumption`, `CompletedFetch` 3.9). An offset too high would silently lose good records, so
# whatever is not certain is refused.

_HEADER = struct.Struct(">qiibB")  # offset, size, leader epoch or checksum, magic, attributes (of magic 0 and 1)
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23


class Jump(NamedTuple):
    """The way over the batch: the next offset to ask for, and the batch's first byte and that after its last."""

    until: int
    start: int
    end: int


class NoJump(enum.Enum):
    MORE = "more"
    """What follows was not fetched: more bytes may decide it."""
    DAMAGED = "damaged"
    """Its size, or what follows it, makes no sense."""


def jump(found: Unusable, records: memoryview, end_of_log: int) -> Jump | NoJump:
    """The way over a batch among `records`; `end_of_log`: the offset after the last one that can be read.

    A batch's size must lead to the plausible header of a next one, which gives the offset to continue at, or to the
    end of the log. One that is cut off is jumped over in magic 0 and 1 only: there it is one message, and brokers that
    send batches of magic 2 never cut the first one short, so that a size that is not reached is damaged.
    """
    # The offset to go on at is the beginning of the *next* batch: this one's own last offset is covered by the checksum
    # that failed. No client can go over a damaged size: the broker itself cannot read on then, and answers
    # CORRUPT_MESSAGE, which ends the stream after some attempts (before 0.11 UNKNOWN_SERVER_ERROR, which does not). A
    # message that is cut off is only passed over if the broker has data after it.
    own = _header(records, found.position)
    if own is None:
        return NoJump.MORE
    own_offset, size, magic, _ = own
    if found.cut_off:
        plausible = magic in (0, 1) and found.offset <= own_offset < end_of_log
        return Jump(own_offset + 1, found.position, len(records)) if plausible else NoJump.DAMAGED
    end = found.position + L.LOG_OVERHEAD + size
    if size < L.MESSAGE_SIZE_V0:
        return NoJump.DAMAGED
    if end > len(records):
        return NoJump.MORE
    until = own_offset + 1
    if magic == 2 and size >= L.BATCH_SIZE:
        until += _LAST_DELTA.unpack_from(records, found.position + _LAST_DELTA_AT)[0]
    if end == len(records):
        return Jump(until, found.position, end) if found.offset < until == end_of_log else NoJump.MORE
    following = _header(records, end)
    if following is None:
        return NoJump.MORE
    next_offset, next_size, next_magic, next_attributes = following
    if next_size < L.MESSAGE_SIZE_V0 or not 0 <= next_magic <= 2:
        return NoJump.DAMAGED
    if next_magic == 2 or not next_attributes & L.CODEC_MASK:
        until = next_offset
    elif not own_offset < next_offset < end_of_log:  # a wrapper has its last message's offset, not its first
        return NoJump.DAMAGED
    return Jump(until, found.position, end) if found.offset < until <= end_of_log else NoJump.DAMAGED


def without_way(found: Unusable) -> KzConsumerError:
    """The error of a batch behind which the next offset cannot be determined."""
    if found.cut_off:
        return found._replace(reason=f"{found.reason}, or its size is damaged: nothing after it can be read").error
    return found._replace(reason=f"{found.reason}, and the start of the next batch cannot be determined").error


def _header(records: memoryview, position: int) -> tuple[int, int, int, int] | None:
    """Offset, size, magic, attributes; None where fewer bytes are left."""
    if len(records) - position < _HEADER.size:
        return None
    offset, size, _, magic, attributes = _HEADER.unpack_from(records, position)
    return offset, size, magic, attributes
