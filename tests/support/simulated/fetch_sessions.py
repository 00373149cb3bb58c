"""A broker's fetch sessions (KIP-227), as `kafka.server.FetchManager` (2.8, 3.9) keeps them for consumers.

`FetchSessions` owns the sessions and what is wrong with them. A session is evicted if there is no slot for another one
and it was not used for a while; that a larger one may evict a smaller one after that time is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kzconsumer.model import TopicPartition
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.kafka_frames import Fetch, FetchedFrom, Part

SLOTS: Final = 1000
"""`max.incremental.fetch.session.cache.slots`."""
UNUSED: Final = 120.0
"""Seconds without a fetch after which a session may be evicted (`min.incremental.fetch.session.eviction.ms`)."""
LARGEST_EPOCH: Final = 2**31 - 1


@dataclass
class Cached:
    """A partition of a session, and what the last answer that had it said: it is in the next answer if that changes."""

    asked: FetchedFrom
    high_watermark: int = -1
    log_start: int = -1

    def has_news(self, part: Part) -> bool:
        news = bool(part.records or part.error or part.preferred >= 0)
        news = news or (self.high_watermark, self.log_start) != (part.high_watermark, part.log_start)
        self.high_watermark = -1 if part.error else part.high_watermark  # that the error has gone is news
        self.log_start = part.log_start
        return news


@dataclass
class Session:
    number: int
    epoch: int
    used: float
    partitions: dict[TopicPartition, Cached] = field(default_factory=dict)
    """In the order in which they are read."""

    def update(self, request: Fetch) -> None:
        for asked in request.partitions:
            if (cached := self.partitions.get(asked.partition)) is not None:
                cached.asked = asked
            else:
                self.partitions[asked.partition] = Cached(asked)
        for partition in request.forgotten:
            self.partitions.pop(partition, None)


@dataclass
class Answer:
    """How one fetch is answered: `request` has all partitions to be read."""

    request: Fetch
    error: int = frames.NONE
    session: Session | None = None
    opens: Callable[[Fetch, Sequence[Part]], Session | None] | None = None
    """Opens a session of what is answered."""

    def finish(self, parts: list[Part]) -> tuple[int, int, list[Part]]:
        """Error, number of the session and what is sent of `parts`, which are those of all partitions of `request`."""
        if self.error:
            return self.error, 0, []
        if self.opens is not None:
            opened = self.opens(self.request, parts)
            return frames.NONE, opened.number if opened is not None else 0, parts
        if self.session is None:
            return frames.NONE, 0, parts
        if self.session.epoch != next_epoch(self.request.epoch):  # another request came meanwhile
            return frames.INVALID_FETCH_SESSION_EPOCH, self.session.number, []
        cached = self.session.partitions
        news = [part for part in parts if part.partition in cached and cached[part.partition].has_news(part)]
        for part in news:
            if part.records:  # it is read last from now on
                cached[part.partition] = cached.pop(part.partition)
        return frames.NONE, self.session.number, news

    def throttle(self) -> int:
        """The number of the session in an answer without partitions, because of a quota."""
        return self.session.number if self.session is not None else 0


class FetchSessions:
    """See the module."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.slots = SLOTS
        self.refuses = frames.NONE
        """The error that answers every request."""
        self._now = now
        self._opened = 0
        self.sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self.sessions)

    @property
    def reads(self) -> list[dict[TopicPartition, FetchedFrom]]:
        """What each session reads."""
        return [
            {partition: cached.asked for partition, cached in session.partitions.items()}
            for session in self.sessions.values()
        ]

    def evict(self) -> None:
        """All of them; or the broker was restarted."""
        self.sessions.clear()

    def skip_epoch(self) -> None:
        """Of each session: its client takes another one for the next."""
        for session in self.sessions.values():
            session.epoch = next_epoch(session.epoch)

    def begin(self, request: Fetch) -> Answer:
        if self.refuses:
            return Answer(request, self.refuses)
        if request.epoch <= 0:
            self.sessions.pop(request.session, None)
            return Answer(request, opens=self._open if request.epoch == 0 else None)
        session = self.sessions.get(request.session)
        if session is None:
            return Answer(request, frames.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.epoch:
            return Answer(request, frames.INVALID_FETCH_SESSION_EPOCH)
        session.update(request)
        if not session.partitions:
            del self.sessions[session.number]
            return Answer(request._replace(partitions=[]))
        session.used = self._now()
        session.epoch = next_epoch(session.epoch)
        asked = [cached.asked for cached in session.partitions.values()]
        return Answer(request._replace(partitions=asked), session=session)

    def _open(self, request: Fetch, parts: Sequence[Part]) -> Session | None:
        now = self._now()
        if len(self.sessions) >= self.slots:
            oldest = min(self.sessions.values(), key=lambda session: session.used, default=None)
            if oldest is None or now - oldest.used <= UNUSED:
                return None
            del self.sessions[oldest.number]
        self._opened += 1
        session = self.sessions[self._opened] = Session(self._opened, 1, now)
        asked = {each.partition: each for each in request.partitions}
        for part in parts:
            high = -1 if part.error else part.high_watermark
            session.partitions[part.partition] = Cached(asked[part.partition], high, part.log_start)
        return session


def next_epoch(epoch: int) -> int:
    return 1 if epoch == LARGEST_EPOCH else epoch + 1
