"""Accounts for every offset of a range: a record, or a proof that the log has none there. Without IO.

The proofs that an offset has no record:

- It lies within the batches of an answer: a control record, an aborted transaction, a record that compaction removed.
- It lies before the first batch of an answer to a request for it. A broker answers with the batch that holds the
  offset, or with the next one, in whichever segment that is (`LocalLog.read`, Kafka 3.9). That batch may begin behind
  the range. This is no proof if the log begins behind the offset: retention has removed what was there.
- The log has nothing from the offset on that can be read. Compaction leaves such a hole behind tombstones: an empty
  batch is kept only for idempotent producers (`Cleaner.checkBatchRetention`), and what follows in the next segment is
  not readable yet, or an election has cut it off. `LocalLog.read` then finds no bytes, "when all messages with offset
  larger than start offsets have been deleted", and the answer is empty. Kafka's consumer waits there for the next
  record. A range must end, so the hole is proved by two answers in a row that all of this is true of:
  - The second was to a request for this partition alone (`alone`). Of several, some have nothing for want of room, and
    a broker makes one remote read for each request.
  - No error, no throttling, no replica to be asked instead.
  - The first said already that the log can be read up to the end of the range. (Before 0.11 a broker reads the end of
    the log after the records, so records may have come in between.)
  - The broker has the offset on its own disks (`EARLIEST_LOCAL`, asked for after the answers: it only goes up). From
    there it reads in the request itself. A read of tiered storage that does not end in time, or that a quota delays,
    gives an empty answer as well.
  Brokers that do not know EARLIEST_LOCAL have no tiered storage if they are Apache Kafka. Others had it earlier
  (Confluent Platform, Amazon MSK), so the answers of such brokers must stay empty for `request_timeout`.

An empty answer proves nothing else. The range is asked for again, with a longer `max_wait` each time (brokers 3.6 and
3.7 give up a remote read when it ends), and fails in the end with what was waited for.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from kzconsumer.brokers.protocol.error_codes import broker_error
from kzconsumer.brokers.protocol.fetch import FetchedPartition, FetchPosition
from kzconsumer.brokers.protocol.leader_epochs import EpochEnd
from kzconsumer.errors import ConnectionLostError, CorruptRecordError, KzConsumerError, OffsetLostError
from kzconsumer.fetcher.corrupt_batch import Unusable
from kzconsumer.fetcher.fetch_outcome import FetchOutcome, judge
from kzconsumer.fetcher.looking import readable_end
from kzconsumer.model import OffsetRange
from kzconsumer.records.decode import Decoded
from kzconsumer.records.forms import NO_RECORDS, Records
from kzconsumer.settings.sections import FetchSettings

PATIENCE: Final = 10
"""Times `[fetch] request_timeout`: how long empty answers are borne. Reads of tiered storage take seconds, its quotas
and transactions longer."""
_LEAST_WAIT: Final = 0.05  # seconds; half of the first `max_wait` after an empty answer, if `[fetch] max_wait` is less
_LARGER: Final = 4  # times `[fetch] max_bytes`: the most that a partition is asked for that is read alone


class Waiting(enum.Enum):
    """What the rest of a range waits for."""

    ANSWER = "an answer"
    LOG = "the log to reach the end of the range"
    TRANSACTION = "an open transaction to end"
    RECORDS = "records"


class RangeAccount:
    """One range. `first` is the first offset that is not accounted for; at `until` the range is complete."""

    def __init__(self, wanted: OffsetRange, settings: FetchSettings, isolation: int, time: float) -> None:
        """`time`, here and below, is that of `kzconsumer.clock`."""
        self.topic_partition = wanted.topic_partition
        self.first = wanted.first
        self.until = wanted.until
        self.records = 0
        """Records so far."""
        self.max_wait = settings.max_wait
        """Seconds for which the broker may hold back the next answer to a request for this partition alone."""
        self.asks_where = False
        """A hole is as good as proved: `local_start` is to be called with what the leader says."""
        self._settings = settings
        self._isolation = isolation
        self._size = settings.max_bytes
        self._cut = False  # with a batch of which the answer had only a part, as before 0.10.1
        self._behind = False  # the last answer was empty though the log can be read further
        self._empty_since: float | None = None  # since when answers are empty that might prove a hole
        self._waiting = Waiting.ANSWER
        self._since = time
        self._reason: KzConsumerError = ConnectionLostError(f"{self.topic_partition}: no leader has answered")

    @property
    def complete(self) -> bool:
        return self.first >= self.until

    @property
    def alone(self) -> bool:
        """To be asked for in a request of its own."""
        return self._behind

    @property
    def position(self) -> FetchPosition:
        return FetchPosition(self.first, self._size)

    def take(
        self, part: FetchedPartition, decoded: Decoded | None, *, asked: int, throttled: bool, time: float
    ) -> Records:
        """The records of an answer that belong to the range; accounts for what the answer proves.

        `decoded` is None for an answer without bytes. `asked`: the number of partitions in the request. `throttled`:
        the broker says that a quota was exceeded.
        Raises OffsetLostError if the log does not hold `first` any more, CorruptRecordError, KzConsumerError for a
        batch that is larger than `[fetch] largest_batch`.
        """
        self.asks_where = False
        if judge(part.error) is FetchOutcome.OUT_OF_RANGE or self.first < part.log_start_offset:
            raise OffsetLostError(f"{self.topic_partition}: the log does not hold offset {self.first} any more")
        if decoded is None:
            self._take_empty(part, throttled=throttled, time=time)
            return NO_RECORDS
        self._behind, self._empty_since = False, None
        self._wait_for(Waiting.RECORDS, time)
        self._say("the answers end before them", time)
        if decoded.corrupt is not None and decoded.corrupt.offset < self.until and not decoded.records:
            raise CorruptRecordError(self.topic_partition, decoded.corrupt.offset, decoded.corrupt.reason)
        if decoded.incomplete:
            self._grow()
        if decoded.next_offset <= self.first:
            return NO_RECORDS
        records = decoded.records.below(self.until)
        if asked == 1 and not self._cut:
            self._size = self._size_of_rest(len(part.records), decoded.next_offset)
        self.first = min(decoded.next_offset, self.until)
        self.records += len(records)
        self.max_wait = self._settings.max_wait
        return records

    def _take_empty(self, part: FetchedPartition, *, throttled: bool, time: float) -> None:
        end = readable_end(part, self._isolation)
        self._behind = self.first < end
        may_prove = end >= self.until and not throttled and part.preferred < 0
        self.asks_where = may_prove and self._empty_since is not None
        if not may_prove:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = time
        if part.high_watermark < self.until:
            self._wait_for(Waiting.LOG, time)
            ends = f"the log ends at {part.high_watermark}, before {self.until}"
            self._reason = OffsetLostError(f"{self.topic_partition}: {ends}")
        elif end < self.until:
            self._wait_for(Waiting.TRANSACTION, time)
            self._say(f"a transaction that begins at {end} has not ended", time)
        else:
            self._wait_for(Waiting.RECORDS, time)
            cause = "a quota of the brokers" if throttled else "slow tiered storage, or its quota"
            self._say(f"the answers have no records, though the log goes on to {part.high_watermark} ({cause}?)", time)
        if self._behind:
            self.max_wait = min(max(self.max_wait, _LEAST_WAIT) * 2, self._settings.request_timeout)

    def require_epoch(self, epoch: int, end: EpochEnd, time: float) -> bool:
        """Whether the log is still the one that was known up to `until` in this leader epoch; False if that is unknown.

        `end`: what the leader says of the epoch. Raises OffsetLostError if other records have taken the place of some.
        """
        if end.error:
            self.unanswered(broker_error(end.error, str(self.topic_partition)), time)
        elif end.end_offset < 0:  # a leader of before, or a cluster that was restored from a copy
            reason = f"the log has no leader epoch {epoch}, in which offsets {self.first} to {self.until} were planned"
            self.unanswered(ConnectionLostError(f"{self.topic_partition}: {reason}"), time)
        elif end.end_offset < self.until:
            raise OffsetLostError(
                f"{self.topic_partition}: offsets {self.first} to {self.until} were planned in leader epoch {epoch}, "
                f"whose records end at {end.end_offset} now: {self.until - max(end.end_offset, self.first)} of them "
                "were cut off, and others may have taken their place (an unclean election, or a restored broker)"
            )
        else:
            return True
        return False

    def local_start(self, offset: int | None, time: float) -> None:
        """`offset`: where the part of the log begins that the leader has on its own disks; None if it does not know."""
        assert self._empty_since is not None
        long_enough = time - self._empty_since >= self._settings.request_timeout
        if long_enough if offset is None else offset <= self.first:
            self.first = self.until
        self.asks_where = False

    def throttled(self, time: float) -> None:
        """The broker says that a quota was exceeded, and nothing of the partition (KIP-219)."""
        self.asks_where = False
        self._empty_since = None
        self._wait_for(Waiting.RECORDS, time)
        self._say("the brokers' quota for this client is exceeded", time)

    def unanswered(self, reason: KzConsumerError, time: float) -> None:
        """There was no leader, no connection, or an error that may pass."""
        self.asks_where = False
        self._empty_since = None
        self._wait_for(Waiting.ANSWER, time)
        self._reason = reason

    def overdue(self, moved: float, time: float, *, follow: bool) -> KzConsumerError | None:
        """Why it is not worth waiting any longer. `moved`: when any range of the read last got on.

        With `follow` only answers are waited for with an end.
        """
        if follow and self._waiting is not Waiting.ANSWER:
            return None
        brief = self._waiting in (Waiting.ANSWER, Waiting.LOG)
        limit = self._settings.request_timeout * (1 if brief else PATIENCE)
        return self._reason if time > max(moved, self._since) + limit else None

    def _wait_for(self, what: Waiting, time: float) -> None:
        if what is not self._waiting:
            self._waiting, self._since = what, time

    def _say(self, what: str, time: float) -> None:
        waited = f"waited {time - self._since:.0f} s for {self._waiting.value}"
        self._reason = ConnectionLostError(
            f"{self.topic_partition}: offsets {self.first} to {self.until}: {what}; {waited}"
        )

    def _grow(self) -> None:
        """Brokers before 0.10.1 cut a batch larger than the fetch size short: ask for more, up to a limit."""
        most = self._settings.largest_batch
        if self._size >= most:
            reason = f"is larger than largest_batch = {most} bytes of the table [fetch]"
            raise Unusable(self.topic_partition, self.first, 0, reason, cut_off=True).error
        self._cut = True
        self._size = min(self._size * 2, most)

    def _size_of_rest(self, received: int, next_offset: int) -> int:
        """How many bytes to ask for next: what the rest is likely to take, within limits; each request costs 1 ms."""
        most = self._settings.max_bytes
        expected = received * (self.until - next_offset) // (next_offset - self.first)
        return max(most, min(expected * 9 // 8, most * _LARGER, self._settings.response_bytes))


class Question(NamedTuple):
    """One request for records."""

    accounts: list[RangeAccount]
    max_wait: float
    """Seconds."""


def questions(accounts: Iterable[RangeAccount], settings: FetchSettings) -> list[Question]:
    """The requests to one leader: one for most of its ranges, and one for each in which there may be a hole."""
    together: list[RangeAccount] = []
    alone: list[Question] = []
    for each in accounts:
        if each.alone:
            alone.append(Question([each], each.max_wait))
        else:
            together.append(each)
    if not together:
        return alone
    return [Question(together, together[0].max_wait if len(together) == 1 else settings.max_wait), *alone]
