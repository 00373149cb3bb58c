"""The offset to continue at after a batch that cannot be used, found by the framing alone.

Kafka's own consumer leaves this to the application, which may seek (`KafkaException: ... please seek past the record to
continue consumption`, `CompletedFetch` 3.9). An offset too high would silently lose good records, so whatever is not
certain is refused.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from kzconsumer.errors import CorruptRecordError, KzConsumerError
from kzconsumer.model import TopicPartition
from kzconsumer.records import layout as L

_HEADER = struct.Struct(">qiibB")  # offset, size, leader epoch or checksum, magic, attributes (of magic 0 and 1)
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23


class Unusable(NamedTuple):
    """A batch that is not worth another attempt."""

    topic_partition: TopicPartition
    offset: int
    """The first offset whose record is missing."""
    position: int
    """The batch's first byte among those fetched."""
    reason: str
    cut_off: bool = False
    """It is not corrupt but larger than may be fetched: only its beginning was sent."""

    @property
    def error(self) -> KzConsumerError:
        if self.cut_off:
            return KzConsumerError(f"{self.topic_partition}: the batch at offset {self.offset} {self.reason}")
        return CorruptRecordError(self.topic_partition, self.offset, self.reason)


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


def unreadable(partition: TopicPartition, offset: int, code: str) -> KzConsumerError:
    """The error of an offset at which the broker itself cannot read its log, so that there are no bytes to look at."""
    return CorruptRecordError(
        partition,
        offset,
        f"the broker cannot read its log there ({code}); start after it, or make another replica the leader",
    )


def _header(records: memoryview, position: int) -> tuple[int, int, int, int] | None:
    """Offset, size, magic, attributes; None where fewer bytes are left."""
    if len(records) - position < _HEADER.size:
        return None
    offset, size, _, magic, attributes = _HEADER.unpack_from(records, position)
    return offset, size, magic, attributes
