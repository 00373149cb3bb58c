"""What answers without records say of a partition whose log goes on: how to ask again, and what they prove. Without IO.

A broker that has records and sends none is not at the end of its log. It may have had no room in the response, read
tiered storage that is slow, or keep to a quota. Then the partition is asked for in a request of its own, with a longer
`max_wait` each time: brokers 3.6 and 3.7 give up a remote read when it ends.

Or the log has nothing from the offset on that can be read. Compaction leaves such a hole behind tombstones: an empty
batch is kept only for idempotent producers (`Cleaner.checkBatchRetention`), and what follows in the next segment is
not readable yet, or an election has cut it off. `LocalLog.read` (Kafka 3.9) then finds no bytes, "when all messages
with offset larger than start offsets have been deleted", and the answer is empty. Kafka's consumer waits there for the
next record. A range that has to end proves the hole by two answers in a row that all of this is true of:

- The second was to a request for this partition alone (`behind`). Of several, some have nothing for want of room, and
  a broker makes one remote read for each request.
- No error, no throttling, no replica to be asked instead.
- The first said already that the log can be read up to the end of the range. (Before 0.11 a broker reads the end of
  the log after the records, so records may have come in between.)
- The broker has the offset on its own disks (`EARLIEST_LOCAL`, asked for after the answers: it only goes up). From
  there it reads in the request itself. A read of tiered storage that does not end in time, or that a quota delays,
  gives an empty answer as well.

Brokers that do not know EARLIEST_LOCAL have no tiered storage if they are Apache Kafka. Others had it earlier
(Confluent Platform, Amazon MSK), so the answers of such brokers must stay empty for `[fetch] request_timeout`.
"""

from __future__ import annotations

from typing import Final

from kzconsumer.brokers.protocol.fetch import FetchedPartition
from kzconsumer.settings.sections import FetchSettings

_LEAST_WAIT: Final = 0.05  # seconds; half of the first `max_wait` after an empty answer, if `[fetch] max_wait` is less


class EmptyAnswers:
    """Those for one partition, since it last sent records."""

    __slots__ = ("_asked", "_may_prove_since", "asks_where", "behind", "logged", "max_wait", "since")

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
        self._may_prove_since: float | None = None
        self._asked: tuple[int, int | None] = (-1, None)

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

        `until`: where the range ends; None: the partition is read for ever. `end`: up to where the log can be read now.
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
        if self._asked != (first, until):
            self._asked, self._may_prove_since = (first, until), None
        may_prove = until is not None and end >= until and not throttled and part.preferred < 0
        self.asks_where = may_prove and self.behind and self._may_prove_since is not None
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
        self.interrupt()

    def prove_hole(self, local: int | None, settings: FetchSettings, time: float) -> bool:
        """Whether the log has no records from the asked offset to the end of the range.

        `local`: where the part of the log begins that the leader has on its own disks; None if it does not know.
        """
        assert self._may_prove_since is not None
        self.asks_where = False
        if local is None:
            return time - self._may_prove_since >= settings.request_timeout
        return local <= self._asked[0]
