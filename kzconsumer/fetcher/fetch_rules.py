"""What a fetcher asks for and makes of an answer, without IO: forms of records, empty answers, error codes, gaps.

A member either decodes what it fetches or looks only how far each log can be read: its consumer's `wants` decides.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.log_reads import READ_COMMITTED, Diverging, FetchedPartition
from kzconsumer.errors import CorruptRecordError, KzConsumerError, UnusableBatchError
from kzconsumer.model import TopicPartition
from kzconsumer.records import compression as L
from kzconsumer.records.decode import Decoded, decode
from kzconsumer.records.forms import NO_RECORDS, Unfetched
from kzconsumer.settings.sections import FetchSettings


class FetchForm(Protocol):
    """Decodes one partition's part of a response."""

    def __call__(self, part: FetchedPartition, start: int, room: int | None = None, /) -> Decoded:
        """`start`: the offset that was asked for; `room`: as for `decode`. Never raises."""
        ...


def decoding(largest_body: int) -> FetchForm:
    """`largest_body`: bytes to which a batch may decompress before it counts as corrupt."""

    def decoded(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
        topic, partition = part.topic_partition
        return decode(
            part.records,
            topic=topic,
            partition=partition,
            start=start,
            aborted=part.aborted,
            largest_body=largest_body,
            room=room,
        )

    return decoded


# What answers without records say of a partition whose log goes on: how to ask again, and what they prove. Without
# IO.
#
# A broker that has records and sends none is not at the end of its log. It may have had no room in the response, read
# tiered storage that is slow, or keep to a quota. Then the partition is asked for in a request of its own, with a
# longer `max_wait` each time: brokers 3.6 and 3.7 give up a remote read when it ends.
#
# Or the log has nothing from the offset on that can be read. Compaction leaves such a hole behind tombstones: an
# empty batch is kept only for idempotent producers (`Cleaner.checkBatchRetention`), and what follows in the next
# segment is not readable yet, or an election has cut it off. `LocalLog.read` (Kafka 3.9) then finds no bytes, "when
# all messages with offset larger than start offsets have been deleted", and the answer is empty. Kafka's consumer
# waits there for the next record. So does a member without end, which is not behind then. A range that has to end is
# over. The hole is proved by two answers in a row that all of this is true of:
#
# - The second was to a request for this partition alone (`behind`). Of several, some have nothing for want of room, and
#   a broker makes one remote read for each request.
# - No error, no throttling, no replica to be asked instead.
# - The first said already that the log can be read up to the end of the range, or as far as the second. (Before 0.11 a
#   broker reads the end of the log after the records, so records may have come in between.)
# - The broker has the offset on its own disks (`EARLIEST_LOCAL`, asked for after the answers: it only goes up). From
#   there it reads in the request itself. A read of tiered storage that does not end in time, or that a quota delays,
#   gives an empty answer as well.
#
# Brokers that do not know EARLIEST_LOCAL have no tiered storage if they are Apache Kafka. Others had it earlier
# (Confluent Platform, Amazon MSK), so the answers of such brokers must stay empty for `[fetch] request_timeout`. For a
# member without end they prove nothing.

_LEAST_WAIT: Final = 0.05  # seconds; half of the first `max_wait` after an empty answer, if `[fetch] max_wait` is less


class EmptyAnswers:
    """Those for one partition, since it last sent records."""

    __slots__ = (
        "_asked",
        "_goal",
        "_may_prove_since",
        "asks_where",
        "behind",
        "hole_until",
        "logged",
        "max_wait",
        "since",
    )

    def __init__(self) -> None:
        self.behind = False
        """The last answer was empty though the log can be read further: ask for it in a request of its own."""
        self.since = 0.0
        """Since when, if `behind`."""
        self.max_wait = 0.0
        """Seconds for which the broker may hold back the next answer, if `behind`. It is kept when records come: the
        next remote read takes as long."""
        self.asks_where = False
        """A hole is as good as proved: `prove_hole` is to be called with what the leader says."""
        self.logged = False
        self.hole_until: int | None = None
        """The log is proved to have no record from the asked offset on up to this one."""
        self._may_prove_since: float | None = None
        self._asked: tuple[int, int | None] = (-1, None)
        self._goal = 0  # up to where the log has to have nothing

    def take(
        self,
        part: FetchedPartition,
        first: int,
        until: int | None,
        end: int,
        settings: FetchSettings,
        *,
        throttled: bool,
        time: float,
    ) -> None:
        """An empty answer to a request for offset `first`.

        `until`: where the range ends; None: the partition is read for ever, and it is asked whether there is anything
        left up to `end`: up to where the log can be read now.
        `time`, here and below, is that of `kzconsumer.clock`.
        """
        if first >= end:
            self.reset()
            self.max_wait = 0.0
            return
        if not self.behind:
            self.since = time
            self.max_wait = max(self.max_wait, max(settings.max_wait, _LEAST_WAIT) * 2)
        else:
            self.max_wait *= 2
        self.max_wait = min(self.max_wait, settings.request_timeout)
        if self._asked != (first, until) or (until is None and end > self._goal):
            self._asked, self._may_prove_since, self.hole_until = (first, until), None, None
            self._goal = end if until is None else until
        may_prove = end >= self._goal and not throttled and part.preferred < 0
        follows = self.behind and self._may_prove_since is not None
        self.asks_where = may_prove and follows and self.hole_until is None
        if not may_prove:
            self._may_prove_since = None
        elif self._may_prove_since is None:
            self._may_prove_since = time
        self.behind = True

    def interrupt(self) -> None:
        """The next answer does not follow the last one: an error, or a quota."""
        self.asks_where = False
        self._may_prove_since = None

    def reset(self) -> None:
        """Records came, or the partition is asked for elsewhere."""
        self.behind = self.logged = False
        self.hole_until = None
        self.interrupt()

    def prove_hole(self, local: int | None, settings: FetchSettings, time: float) -> bool:
        """Whether the log has no records from the asked offset to the end of the range.

        `local`: where the part of the log begins that the leader has on its own disks; None if it does not know.
        """
        assert self._may_prove_since is not None
        self.asks_where = False
        first, until = self._asked
        if local is None:  # what is read for ever does not have to end: a slow read may still bring records
            proved = until is not None and time - self._may_prove_since >= settings.request_timeout
        else:
            proved = local <= first
        self.hole_until = self._goal if proved else None
        return proved


# For a consumer that fetches for itself: how far each log can be read, instead of its records.
#
# The fetcher asks for as little as it can: brokers answer as soon as there is something new, with at most one batch of
# one partition (before 0.10.1 with the first bytes of each), of which only the head is used.

LOOK_SECONDS: Final = 0.1
"""Between two looks at a log that has been read to its end."""
NOTHING: Final = memoryview(b"")
"""In place of the bytes that came with an answer."""
_PART_OF_BATCH: Final = 10
# What a range counts in the budget of its queue, so that looks do not go far ahead.
_HELD: Final = 1024 * 1024

_HEAD: Final = struct.Struct(">qi4xb6xi")  # first offset, size, magic, last offset delta (of magic 2)
LOOK_BYTES: Final = _HEAD.size
"""To ask for of a partition, so that brokers before 0.10.1 send the head of its first message."""
_MAGIC_OF_BATCHES: Final = 2
# Bytes of a record while nothing is known: the most that brokers take by default (`message.max.bytes`).
_LARGE: Final = 1024 * 1024


def readable_end(part: FetchedPartition, isolation: int) -> int:
    """Up to where records can be read now. Brokers before 0.11 have no last stable offset."""
    stable = isolation == READ_COMMITTED and part.last_stable_offset >= 0
    return part.last_stable_offset if stable else part.high_watermark


class Looking:
    """A `FetchForm` whose records are `Unfetched`: ranges of up to a tenth of a batch.

    The heads of batches tell how many bytes an offset takes in the log. Of several partitions in a request only the
    first gets a batch (KIP-74), so a partition that had none yet is taken to be like another one of its topic. Where
    nothing is known, ranges begin small and double: a log may have nothing left that could be sent.
    """

    def __init__(self, isolation: int, limits: Callable[[], tuple[int, int]]) -> None:
        """`limits` are those of a batch now, records and bytes, which batches may exceed by a tenth."""
        self._isolation = isolation
        self._limits = limits
        self._weights: dict[TopicPartition | str, float] = {}  # by partition, and the last one of each topic
        self._begun: dict[TopicPartition, int] = {}  # where ranges of unknown size began

    def weigh(self, part: FetchedPartition, start: int) -> None:
        """Learn from the batch of an answer, if there is one."""
        if (weight := _weight(part.records, start)) is not None:
            self._weights[part.topic_partition] = self._weights[part.topic_partition.topic] = weight

    def until(self, part: FetchedPartition, start: int) -> int:
        """Where the range ends that begins at `start`."""
        records, size = (max(each // _PART_OF_BATCH, 1) for each in self._limits())
        if weight := self._known(part.topic_partition):
            most = max(int(size / weight), 1)
        else:
            most = max(size // _LARGE, 1, start - self._begun.setdefault(part.topic_partition, start))
        return min(readable_end(part, self._isolation), start + min(most, records))

    def __call__(self, part: FetchedPartition, start: int, room: int | None = None, /) -> Decoded:
        until = self.until(part, start)
        if until <= start:
            return Decoded(NO_RECORDS, start)
        return Decoded(Unfetched(start, until, self._known(part.topic_partition)), until, size=_HELD)

    def _known(self, partition: TopicPartition) -> float:
        return self._weights.get(partition) or self._weights.get(partition.topic, 0.0)


def _weight(records: bytes | memoryview, start: int) -> float | None:
    """Bytes of an offset, by the head of the first batch; None if that is not there. Offsets have gaps."""
    if len(records) < _HEAD.size:
        return None
    base, length, magic, last = _HEAD.unpack_from(records)
    # A message of magic 0 or 1 has one offset. One that has others inside has that of the last of them.
    offsets = last + 1 if magic >= _MAGIC_OF_BATCHES else base + 1 - start
    return float(max(length + L.LOG_OVERHEAD, 1) / max(offsets, 1))


def next_look(time: float) -> float:
    """The same for all partitions, so that they are asked for together."""
    return (time // LOOK_SECONDS + 1) * LOOK_SECONDS


# What the error code of one partition in a fetch response means for what happens next.

# Attempts before it is final that a broker finds its log corrupt.
ATTEMPTS: Final = 3


class FetchOutcome(enum.Enum):
    RECORDS = "records"
    """No error; there may be no bytes."""
    OUT_OF_RANGE = "out of range"
    """The log does not hold the offset: the reset policy decides."""
    UNREADABLE = "unreadable"
    """The broker fails to read its log there. Another replica, if it becomes the leader, may not."""
    FIND_LEADER = "find leader"
    """Another broker leads the partition, or this one cannot serve it at the moment."""


def judge(error: int) -> FetchOutcome:
    """As `kafka.consumer.ConsumerFetcherThread` (1.1.1): anything but the first two goes through the leader finder.

    There, what a broker cannot read is requested again without end. Kafka's own consumer raises CORRUPT_MESSAGE, and
    requests again after UNKNOWN_SERVER_ERROR (`FetchCollector.handleInitializeErrors`). That may pass: it is the answer
    to any exception in the broker, such as those of remote storage that is not reached.
    """
    if error == error_codes.NONE:
        return FetchOutcome.RECORDS
    if error == error_codes.OFFSET_OUT_OF_RANGE:
        return FetchOutcome.OUT_OF_RANGE
    if error == error_codes.CORRUPT_MESSAGE:
        return FetchOutcome.UNREADABLE
    return FetchOutcome.FIND_LEADER


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
    def error(self) -> UnusableBatchError:
        if self.cut_off:
            text = f"{self.topic_partition}: the batch at offset {self.offset} {self.reason}"
            return UnusableBatchError(self.topic_partition, self.offset, text)
        return CorruptRecordError(self.topic_partition, self.offset, self.reason)


def unusable_batch(
    partition: TopicPartition, asked: int, size: int, decoded: Decoded, settings: FetchSettings
) -> Unusable | None:
    """The batch at which decoding stopped, if more bytes than `size` would not help. `asked`: the offset."""
    if (corrupt := decoded.corrupt) is not None:
        return Unusable(partition, corrupt.offset, corrupt.position, corrupt.reason)
    if decoded.incomplete and larger(size, settings) is None:
        reason = f"is larger than largest_batch = {settings.largest_batch} bytes of the table [fetch]"
        return Unusable(partition, asked, 0, reason, cut_off=True)
    return None


def larger(size: int, settings: FetchSettings) -> int | None:
    """How many bytes to ask for instead of `size`, which hold no whole batch; None if that is the most.

    Brokers before 0.10.1 cut a batch larger than the fetch size short. One that is cut off behind others is normal.
    """
    if size < settings.max_bytes:  # it was less, to save memory
        return settings.max_bytes
    return min(size * 2, settings.largest_batch) if size < settings.largest_batch else None


def unreadable(partition: TopicPartition, offset: int, code: str) -> KzConsumerError:
    """The error of an offset at which the broker itself cannot read its log, so that there are no bytes to look at."""
    return CorruptRecordError(
        partition,
        offset,
        f"the broker cannot read its log there ({code}); start after it, or make another replica the leader",
    )


# A log that lost what was read before a position, and has grown past it again. Without IO.

UNKNOWN_END: Final = -1
"""`Diverging.end_offset` of a log that has no epoch as large as the position's: where it differs is unknown."""


def differs(partition: TopicPartition, offset: int, leader_epoch: int, found: Diverging) -> str:
    """What errors say of a log that has other records than those that were consumed up to `offset`."""
    if found.end_offset < 0:
        where = "its leader epochs are all lower: nothing says where it differs"
    else:
        epoch = f" (epoch {found.epoch})" if found.epoch >= 0 else ""  # brokers before 2.0 do not say
        replaced = offset - found.end_offset
        where = f"it has the same records up to {found.end_offset}{epoch}: {replaced} were replaced"
    return (
        f"{partition}: the log is not the one that was consumed up to {offset} (leader epoch {leader_epoch}); {where} "
        "after a truncation (an unclean leader election, or a broker restored from a copy)"
    )
