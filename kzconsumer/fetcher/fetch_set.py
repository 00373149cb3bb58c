"""The partitions of one fetch loop, and which of them the next request asks for. Without IO.

Only states that may have changed are looked at: those that an answer was about (`touch`), and all of them after `wake`,
at the end of a pause, when a queue has become full or has room again, and when another size is asked for. So a quiet
partition costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator

from kzconsumer.brokers.protocol.log_reads import FetchedPartition, FetchPosition, FetchResponse
from kzconsumer.fetcher.fetch_session import FetchSession, SessionRequest, silence
from kzconsumer.fetcher.fetch_state import Answers, FetchState
from kzconsumer.model import TopicPartition
from kzconsumer.streams.chunk_queue import ChunkQueue

Wanted = Callable[[FetchState, int], FetchPosition]
"""What to ask of a partition that is read from this offset on."""


class FetchSet:
    """Of broker `number`. `wake` is called when a queue has room again."""

    def __init__(self, number: int, wake: Callable[[], None]) -> None:
        self._number = number
        self._wake = wake
        self.session = FetchSession()
        self.due = math.inf
        """When a pause ends, so that all have to be looked at."""
        self._answers = Answers(0.0)
        self._states: dict[TopicPartition, FetchState] = {}  # in the order of a full request
        # All of these are kept in order, as requests name partitions in the order in which they are looked at.
        self._by_queue: dict[ChunkQueue, dict[FetchState, None]] = {}
        self._full: set[ChunkQueue] = set()  # at the last look
        self._touched: dict[FetchState, None] = {}
        self._stale = False
        self._most = 0
        self._unresolved: dict[FetchState, None] = {}
        self._came_later: set[FetchState] = set()  # since the last request, whose answer is not theirs
        self._listening: dict[FetchState, None] = {}  # those that learn something if an answer has nothing of them

    def __contains__(self, state: FetchState) -> bool:
        return self._states.get(state.topic_partition) is state

    def __iter__(self) -> Iterator[FetchState]:
        return iter(self._states.values())

    def __getitem__(self, partition: TopicPartition) -> FetchState | None:
        return self._states.get(partition)

    @property
    def has_full_queue(self) -> bool:
        """A partition was left out for want of room, at the last look."""
        return bool(self._full)

    @property
    def learns(self) -> bool:
        """An answer that has nothing of a partition would say something."""
        return bool(self._listening)

    @property
    def has_followed(self) -> bool:
        """The broker does not lead one of them."""
        return any(state.preferred == self._number for state in self)

    def add(self, state: FetchState) -> None:
        if (former := self[state.topic_partition]) is not None:
            self.remove(former)
        if state.topic_partition in self.session:
            # The session goes on from another state of this partition, after a seek, a replay or a claim in between
            # which no request forgot it. The broker has reported the end of the log for the former state, and leaves
            # the partition out of its answers until that end moves, from whatever offset it reads. The new state would
            # never have an end: a run that has read all would not end, and a read that takes longer than an answer may
            # would not be noticed.
            self.session.renew()
        self._states[state.topic_partition] = state
        self._came_later.add(state)
        if state.reset_due:
            self._unresolved[state] = None
        self._by_queue.setdefault(state.queue, {})[state] = None
        state.queue.subscribe(self._wake)
        self._touched[state] = None

    def remove(self, state: FetchState) -> None:
        """No effect if another state is in its place."""
        if state not in self:
            return
        del self._states[state.topic_partition]
        self._leave(state)
        others = self._by_queue[state.queue]
        del others[state]
        if not others:
            del self._by_queue[state.queue]
            self._full.discard(state.queue)
            state.queue.unsubscribe(self._wake)

    def move_back(self, states: Iterable[FetchState]) -> None:
        """Ask for these last: brokers fill responses in the order of the request."""
        for state in states:
            partition = state.topic_partition
            if self._states.get(partition) is state:
                self._states[partition] = self._states.pop(partition)

    def touch(self, states: Iterable[FetchState]) -> None:
        """These may have changed."""
        for state in states:
            self._touched[state] = None

    def touch_all(self) -> None:
        """Something outside of the fetch loop has changed."""
        self._stale = True

    def unresolved(self, time: float) -> list[FetchState]:
        """Those whose position has to be found now, for which `touch` or the end of a pause has made a look due."""
        if not self._unresolved:
            return []
        self._unresolved = {state: None for state in self._unresolved if state in self and state.reset_due}
        return [state for state in self._unresolved if state.open and time >= state.retry_at]

    def need_reset(self, state: FetchState) -> None:
        state.reset_due = True
        self._unresolved[state] = None

    def look(self, time: float, wanted: Wanted, most: int, unchecked: Container[FetchState]) -> list[FetchState]:
        """Tell the session what to read. Returns those that have been read from a replica for long enough.

        `most`: of bytes that `wanted` asks for if a partition has no limit of its own. `unchecked`: those whose log
        may be another one.
        """
        for queue, states in self._by_queue.items():  # few, and what others put may fill one
            if queue.has_room_for(self._number) is (queue in self._full):
                self._full ^= {queue}
                self._touched |= states
        if self._stale or time >= self.due or most != self._most:
            self._stale, self.due, self._most = False, math.inf, most
            self._touched = dict.fromkeys(self)
        touched, self._touched = self._touched, {}
        leaving = []
        for state in touched:
            if state not in self:
                continue
            if not state.open:
                self.remove(state)
            elif state.preferred == self._number and time >= state.preferred_until:
                self._leave(state)
                if state.arriving:  # what follows would be queued first
                    self._touched[state] = None
                else:
                    leaving.append(state)
            else:
                self._look_at(state, time, wanted, unchecked)
        return leaving

    def _look_at(
        self,
        state: FetchState,
        time: float,
        wanted: Wanted,
        unchecked: Container[FetchState],
    ) -> None:
        if state.retry_at > time:
            self.due = min(self.due, state.retry_at)
        if state.preferred == self._number:
            self.due = min(self.due, state.preferred_until)
        position = state.position
        if position is None or state.empty.behind or state in unchecked or not state.fetchable(time):
            self._leave(state)
            return
        self.session.want(state.topic_partition, wanted(state, position))
        if state.may_learn:
            self._listening[state] = None
        else:
            self._listening.pop(state, None)

    def _leave(self, state: FetchState) -> None:
        self.session.leave(state.topic_partition)
        self._listening.pop(state, None)
        state.left_session()

    def request(self, *, opens: bool) -> SessionRequest:
        """As `FetchSession.request`."""
        self._came_later.clear()
        return self.session.request(self._states, opens=opens)

    def answered(self, response: FetchResponse, time: float) -> tuple[list[FetchedPartition], Answers | None] | None:
        """What the answer to the last request says, and of which answers it is; None if it has nothing: ask again.

        Partitions of which an answer of a session has nothing are among them, if that says something. Without a session
        one answer is like the next if it has all partitions.
        """
        session = self.session
        if not session.answered(response):
            return None
        parts, goes_on = response.partitions, session.goes_on
        has_all = not goes_on and not response.throttle_ms and len(parts) == len(session.reads)
        if has_all:
            self._answers.at = time
        elif session.opened:
            self._answers = Answers(time)
        elif session.speaks_for_all:
            self._answers.at = time
            if self._listening:
                named = {part.topic_partition for part in parts}
                silent = [state for state in self._listening if state.topic_partition not in named]
                parts = parts + [
                    silence(state.topic_partition, state.high_watermark)
                    for state in silent
                    if state.high_watermark is not None
                ]
        # What was asked for a former state is not this one's, though it begins where that one went on: the log may not
        # have been compared with its position yet. A comparison that meets a position which has moved on meanwhile
        # takes the log for one that was cut off.
        if self._came_later:
            parts = [part for part in parts if self._states.get(part.topic_partition) not in self._came_later]
        return parts, self._answers if goes_on or has_all else None
