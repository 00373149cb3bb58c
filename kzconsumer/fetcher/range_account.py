"""Accounts for every offset of a range: a record, or a proof that the log has none there. Without IO.

The proofs that an offset has no record:

- It lies within the batches of an answer: a control record, an aborted transaction, a record that compaction removed.
- It lies before the first batch of an answer to a request for it. A broker answers with the batch that holds the
  offset, or with the next one, in whichever segment that is (`LocalLog.read`, Kafka 3.9). That batch may begin behind
  the range. This is no proof if the log begins behind the offset: retention has removed what was there.
- The log has nothing from the offset on that can be read: a hole at its end, which `EmptyAnswers` proves.

An empty answer proves nothing else. The range is asked for again, with a longer `max_wait` each time, and fails in the
end with what was waited for.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from kzconsumer.brokers.protocol.error_codes import broker_error
from kzconsumer.brokers.protocol.log_reads import EpochEnd, FetchedPartition, FetchPosition
from kzconsumer.errors import ConnectionLostError, KzConsumerError, OffsetLostError
from kzconsumer.fetcher.fetch_rules import EmptyAnswers, FetchOutcome, judge, larger, readable_end, unusable_batch
from kzconsumer.model import OffsetRange
from kzconsumer.records.decode import Decoded
from kzconsumer.records.forms import NO_RECORDS, Records
from kzconsumer.settings.sections import FetchSettings

PATIENCE: Final = 10
"""Times `[fetch] request_timeout`: how long empty answers are borne. Reads of tiered storage take seconds, its quotas
and transactions longer."""
_LARGER: Final = 8
"""Times `[fetch] max_bytes`: the most bytes of records, once decompressed, for which a partition is asked that is read
alone. Up to there an answer's own cost shows; still larger ones are decoded into fresh memory, which costs as much."""


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
        self._settings = settings
        self._isolation = isolation
        self._size = settings.max_bytes
        self._cut = False  # with a batch of which the answer had only a part, as before 0.10.1
        self._empty = EmptyAnswers()
        self._waiting = Waiting.ANSWER
        self._since = time
        self._reason: KzConsumerError = ConnectionLostError(f"{self.topic_partition}: no leader has answered")

    @property
    def complete(self) -> bool:
        return self.first >= self.until

    @property
    def alone(self) -> bool:
        """To be asked for in a request of its own."""
        return self._empty.behind

    @property
    def max_wait(self) -> float:
        """Seconds for which the broker may hold back the next answer to a request for this partition alone."""
        return self._empty.max_wait if self._empty.behind else self._settings.max_wait

    @property
    def asks_where(self) -> bool:
        """A hole is as good as proved: `local_start` is to be called with what the leader says."""
        return self._empty.asks_where

    @property
    def position(self) -> FetchPosition:
        return FetchPosition(self.first, self._size)

    def take(
        self, part: FetchedPartition, decoded: Decoded | None, *, asked: int, throttled: bool, time: float
    ) -> Records:
        """The records of an answer that belong to the range; accounts for what the answer proves.

        `decoded` is None for an answer without bytes. `asked`: the number of partitions in the request. `throttled`:
        the broker says that a quota was exceeded.
        Raises OffsetLostError if the log does not hold `first` any more, or its leader says so, UnusableBatchError for
        a batch that is corrupt or larger than `[fetch] largest_batch`.
        """
        if self.first < part.log_start_offset:
            begins = f"it begins at {part.log_start_offset}"
            raise OffsetLostError(
                f"{self.topic_partition}: the log does not hold offset {self.first} any more: {begins}"
            )
        if judge(part.error) is FetchOutcome.OUT_OF_RANGE:
            known = f"the leader says that offset {self.first} is not in its log"
            causes = "deleted or cut off; a new leader may also not know yet what is in tiered storage"
            raise OffsetLostError(f"{self.topic_partition}: {known} ({causes})")
        if decoded is None:
            self._take_empty(part, throttled=throttled, time=time)
            return NO_RECORDS
        self._empty.reset()
        self._wait_for(Waiting.RECORDS, time)
        self._say("the answers end before them", time)
        found = unusable_batch(self.topic_partition, self.first, self._size, decoded, self._settings)
        if found is not None and found.offset < self.until and not decoded.records:
            raise found.error
        if decoded.incomplete:
            self._cut = True
            self._size = larger(self._size, self._settings) or self._size
        if decoded.next_offset <= self.first:
            return NO_RECORDS
        records = decoded.records.below(self.until)
        if asked == 1 and not self._cut:
            self._size = self._size_of_rest(len(part.records), decoded.records.nbytes, decoded.next_offset)
        self.first = min(decoded.next_offset, self.until)
        self.records += len(records)
        return records

    def pass_over(self, offset: int) -> None:
        """What is before this offset cannot be used, and `[fetch] on_corrupt` has been carried out."""
        self.first = min(max(self.first, offset), self.until)

    def _take_empty(self, part: FetchedPartition, *, throttled: bool, time: float) -> None:
        end = readable_end(part, self._isolation)
        self._empty.take(part, self.first, self.until, end, self._settings, throttled=throttled, time=time)
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
        if self._empty.prove_hole(offset, self._settings, time):
            self.first = self.until

    def throttled(self, time: float) -> None:
        """The broker says that a quota was exceeded, and nothing of the partition (KIP-219)."""
        self._empty.interrupt()
        self._wait_for(Waiting.RECORDS, time)
        self._say("the brokers' quota for this client is exceeded", time)

    def too_slow(self, time: float) -> None:
        """A part of an answer came in time: the next request is for less."""
        self._empty.interrupt()
        self._wait_for(Waiting.RECORDS, time)
        self._say("the line is too slow for an answer within [fetch] request_timeout", time)

    def unanswered(self, reason: KzConsumerError, time: float) -> None:
        """There was no leader, no connection, or an error that may pass."""
        self._empty.interrupt()
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

    def _size_of_rest(self, received: int, decoded: int, next_offset: int) -> int:
        """How many bytes to ask for next: what the rest is likely to take, within limits; each request costs 2 ms."""
        most = self._settings.max_bytes
        expected = received * (self.until - next_offset) // (next_offset - self.first)
        larger = most * _LARGER * received // max(received, decoded)
        return max(most, min(expected * 9 // 8, larger, self._settings.response_bytes))


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
