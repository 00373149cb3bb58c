"""A fetch loop of one broker: one task, one connection, one request after the other for all its partitions.

Holds the fetch states of partitions that this broker leads. The FetcherManager starts it and hands it partitions;
one whose leader is elsewhere goes back to the leader finder. The next request is on its way while the last response is
decoded (`decode_and_queue`), unless that is small; a partition whose queue is full is left out of it, and delays no
other. A request names only partitions that have changed (`fetch_session`).

What an answer means for the partitions is in `response_handler`; a small one is taken in the callback that reads it, so
that no turn of the event loop comes between its bytes and the streams. Two tasks run beside the loop, since the broker
may be long in answering them: one asks alone for a partition of which it sends nothing (`silent_partitions`), the other
asks for positions, and whether the log still has what was read before one (`_look_up`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import anyio
import anyio.lowlevel

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import LATE
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import error_code
from kzconsumer.brokers.protocol.log_reads import FetchRequest, FetchResponse
from kzconsumer.brokers.protocol.versions import FETCH
from kzconsumer.brokers.transport import Response
from kzconsumer.clock import now
from kzconsumer.counters import Counters
from kzconsumer.errors import BrokerError, ConnectionLostError, ProtocolError, UnsupportedVersionError
from kzconsumer.fetcher.decode_and_queue import SMALL_RESPONSE, Arrival, size_of, take_back
from kzconsumer.fetcher.fetch_rules import FetchForm
from kzconsumer.fetcher.fetch_session import SESSIONS
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.offset_reset import OffsetReset, epoch_ends, find_divergence
from kzconsumer.fetcher.response_handler import ResponseHandler
from kzconsumer.fetcher.silent_partitions import SilentPartitions, mutes
from kzconsumer.fetcher.throttle import RateLimit
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker
from kzconsumer.settings.sections import FetchSettings

log = get_logger("kzconsumer.fetcher")

# Seconds without a request after which a connection that the broker closes is an idle one (`connections.max.idle.ms`).
IDLE = 20.0
# Seconds for which the broker may hold an answer back while a full queue keeps a partition out: a stream takes what it
# has in no time, and the partition is to be asked for then.
WAIT_FOR_ROOM = 0.01
# Seconds after which changes are looked at during a long wait, so that those of one rebalance are looked at together.
LOOK_AGAIN = 0.01
# Seconds for which a broker may hold an answer back while nothing comes. Any record ends the wait. A daemon asks for
# the ends of logs that no broker has reported for 5 s (`status/observer`).
LONGEST_WAIT = 3.0
# The same for brokers before 1.1, of which the oldest do not end it when they lead a partition no more. As
# `fetch.max.wait.ms` of Java and librdkafka.
LONGEST_WITHOUT_SESSION = 0.5


class BrokerFetcher:
    """Fetches from one broker, for as long as `run` runs. `number`: of all fetchers of the membership."""

    def __init__(
        self,
        broker: Broker,
        brokers: Brokers,
        settings: FetchSettings,
        reset: OffsetReset,
        read: FetchForm,
        limit: RateLimit,
        find_leader: Callable[[Iterable[FetchState]], None],
        counters: Counters,
        rack: str = "",
        number: int = 0,
    ) -> None:
        self.broker = broker
        self.number = number
        self._brokers = brokers
        self._settings = settings
        self._reset = reset
        self._rack = rack
        self._answered = now()
        self._asked_after = 0.0  # seconds without requests before the last one
        self._max_wait = settings.max_wait  # of the last request
        self._due = math.inf  # see `_awaited`
        self._look_up_due = math.inf  # the same of what `_look_up` asks
        self._storing: Sequence[FetchState] = ()  # those whose positions it stores
        self._same_since = 0.0  # when another set of partitions was asked for last
        self._long_wait: tuple[BrokerConnection, Response[FetchResponse]] | None = None  # the last one
        self._looks_again = False
        self._left = False  # the connection was closed during a long wait, to ask for more
        self._handler = ResponseHandler(broker, brokers, settings, read, limit, find_leader, counters, self.wake)
        self._states = self._handler.states
        self._silent = SilentPartitions(self._handler, brokers, settings, rack, self.wake, f"alone {number}")
        # Whose logs are to be compared with their positions, before they are fetched.
        self._unchecked: dict[FetchState, None] = {}  # in the order in which they came
        self._work = asyncio.Event()
        self._look_up_work = asyncio.Event()
        self._checked = False  # the logs of some, since the last request was made

    def __contains__(self, state: FetchState) -> bool:
        return state in self._states

    def __len__(self) -> int:
        """How many partitions are still to be fetched."""
        return sum([state.open for state in self._states])

    def share(self, fetchers: int) -> None:
        """So many of this broker have its responses' bytes together."""
        self._handler.throttle.limit(self._settings.response_bytes // fetchers)

    def add(self, states: Iterable[FetchState]) -> None:
        for state in states:
            self._states.add(state)
            state.broker, state.fetcher = self.broker.id, self.number
            if state.preferred != self.broker.id:  # only leaders can be asked, and it was, before it named this replica
                self._unchecked[state] = None
        self._wake_up()

    @property
    def throttled(self) -> bool:
        """A quota of the broker holds this client back."""
        return self._handler.throttle.throttling(now())

    def late(self, time: float) -> list[FetchState]:
        """Partitions that it waits for, if the broker is late, and that their leader should serve."""
        if time < min(self._due, self._look_up_due, self._silent.due) + LATE:
            return []
        # One whose records are still decoded stays: they would be queued behind those that its leader sends by then.
        return [s for s in self._states if s.open and not s.arriving and s.preferred != self.broker.id]

    def leave(self, states: Iterable[FetchState]) -> None:
        """Have their leader looked up: it is another one. What this one may still answer of them is dropped."""
        self._handler.send_back(state for state in states if state not in self._storing)

    def wake(self) -> None:
        """Look at all partitions: something outside of the fetch loop has changed."""
        self._states.touch_all()
        self._wake_up()

    async def run(self) -> None:
        """Runs until cancelled. A connection that fails sends all partitions back to the leader finder."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._silent.run)
                tasks.start_soon(self._look_up)
                tasks.start_soon(self._fetch_together)
        finally:  # of all tasks: another fetcher begins at the positions that they leave
            self._end_session()
            self._handler.send_back(self._states)

    async def _fetch_together(self) -> None:
        connection: BrokerConnection | None = None
        while True:
            await self._work.wait()
            try:
                connection = None
                with self._awaited(now()):
                    connection = await self._brokers.connection(self.broker, f"fetch {self.number}")
                try:
                    await self._fetch_from(connection)
                finally:
                    # An answer still in flight must not meet the next connection's requests.
                    self._brokers.drop(connection)
            except (ConnectionLostError, ProtocolError, BrokerError, UnsupportedVersionError) as error:
                idle = connection is not None and connection.ended_by_peer and self._asked_after > IDLE
                if idle or self._left:
                    self._asked_after = 0.0  # the broker has closed an idle connection, perhaps as we asked
                    self._left = False
                    self.wake()
                    continue
                note = self._ask_for_less(connection) if connection is not None and connection.timed_out else ""
                self._brokers.lost(self.broker, error, note)
                self._work.clear()
                # Not one whose records or position another task is at. It wakes this one afterwards.
                self._handler.send_back(
                    state for state in self._states if not state.arriving and state not in self._storing
                )

    @contextmanager
    def _awaited(self, due: float) -> Iterator[None]:
        """Meanwhile the broker is awaited: by `due` it should have answered, or accepted a connection."""
        self._due = due
        try:
            yield
        finally:
            self._due = math.inf

    def _ask_for_less(self, connection: BrokerConnection) -> str:
        """After an answer that did not come in time. Returns what to log of it."""
        begun, throttle = connection.begun, self._handler.throttle
        if not begun and mutes(connection):
            return ""  # this broker holds no answer back
        throttle.timed_out(throttle.patience(self._settings.request_timeout), begun)
        if begun:
            return f", only {begun} bytes of it: the next will be smaller"
        return ": if a quota holds its answers back, the next will be smaller"

    async def _fetch_from(self, connection: BrokerConnection) -> None:
        """Fetch until the connection is lost or worn out: the next one continues where this one ends."""
        arrived: list[Arrival] = []
        # Not for looks: they ask for all partitions together, at fixed times.
        opens = self._handler.looking is None and connection.versions.choose(FETCH) >= SESSIONS
        muted = mutes(connection)
        self._states.touch_all()
        try:
            while True:
                # The next request is sent before the last response is decoded, so that the broker works meanwhile. What
                # can go wrong between the two:
                # 1. A batch of the last response is corrupt: decoding sets the position back, and the response that is
                #    on its way is for an offset beyond it. `take` drops it, as its position is not the state's.
                # 2. The partition is closed, or its position moves (a seek, a reset): dropped likewise.
                # 3. The response is small: it was decoded when it came (`_receive`), or is decoded now if that takes
                #    more than a moment. On a quiet topic the request would add to a message's delay.
                if arrived and size_of(arrived) < SMALL_RESPONSE:
                    await self._handler.deliver(arrived)
                    await anyio.lowlevel.checkpoint()  # the streams have it before the next request is made
                time = now()
                self._work.clear()  # before the states are looked at: one may be added during the next call
                self._begin_look_up(time)
                reply = None
                if self._look(time) and self._handler.held_back(time) <= 0:
                    request = self._next_request(time, arrived, opens=opens)
                    self._asked_after = time - self._answered
                    patience = self._handler.throttle.patience(self._settings.request_timeout)
                    reply = connection.send(request, timeout=patience)
                if arrived:
                    await self._handler.deliver(arrived)
                elif reply is None:
                    await self._wait_for_work(time)
                if reply is not None:
                    self._long_wait = (connection, reply) if self._max_wait > self._settings.max_wait else None
                    # What was added after `_work.clear` may be in none of the requests: others were compared with
                    # their logs, or decoded, meanwhile. A look that was due then has found the former wait over.
                    if self._work.is_set():
                        self._wake_up()
                    with self._awaited(time + self._max_wait):
                        await reply.taken_by(partial(self._receive, arrived, time, muted=muted))
                if connection.worn_out:
                    await self._handler.deliver(arrived)
                    self.wake()
                    return
        finally:
            self._states.session.renew()  # an answer may be lost
            take_back(arrived)

    def _look(self, time: float) -> bool:
        """Whether anything is to be asked for."""
        most = min(self._settings.max_bytes, self._handler.throttle.most)
        if leaving := self._states.look(time, self._handler.wanted, most, self._unchecked):
            self._handler.send_back(leaving)
        return bool(self._states.session)

    def _next_request(self, time: float, arrived: Sequence[Arrival], *, opens: bool) -> FetchRequest:
        asked = self._states.request(opens=opens)
        self._max_wait = self._next_wait(time, arrived)
        self._checked = False
        return FetchRequest(
            max_wait_ms=int(self._max_wait * 1000),
            min_bytes=1 if self._handler.looking else self._settings.min_bytes,
            max_bytes=1 if self._handler.looking else self._handler.throttle.most,
            partitions=asked.partitions,
            isolation=self._handler.isolation,
            rack=self._rack,
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            forgotten=asked.forgotten,
        )

    def _next_wait(self, time: float, arrived: Sequence[Arrival]) -> float:
        """Seconds for which the broker may hold back its answer: the more, the longer the partitions stay the same.

        Only where any record ends the wait. It does not with a larger `min_bytes`, nor on followers before Kafka 3.4
        (KAFKA-14334). Not for looks, which are due at fixed times, nor where an answer without records says something.
        Not while a large response is decoded: a queue that has room again would seem to be one more partition to read.
        """
        usual, session = self._settings.max_wait, self._states.session
        if not session.same_partitions:
            self._same_since = time
        if self._states.has_full_queue:
            return WAIT_FOR_ROOM
        if self._settings.min_bytes > 1 or self._handler.looking or (self._rack and self._states.has_followed):
            return usual
        if self._states.learns or arrived:
            return usual
        longest = LONGEST_WAIT if session.goes_on else LONGEST_WITHOUT_SESSION
        lasted = time - self._same_since
        return max(usual, min(usual * lasted, longest, self._settings.request_timeout / 2))

    def _wake_up(self) -> None:
        self._work.set()
        self._begin_look_up(now())
        if self._long_wait is not None and not self._looks_again:
            self._looks_again = True
            asyncio.get_running_loop().call_later(LOOK_AGAIN, self._look_again)

    def _look_again(self) -> None:
        """Leave a connection on which the broker holds its answer back, if there is more to ask for by now.

        It reads nothing else from there before. So a partition that is added, or resumed, would be asked for late.
        """
        self._looks_again = False
        if self._long_wait is None:
            return
        connection, reply = self._long_wait
        time = now()
        if not reply.arrived and self._look(time) and (self._checked or self._states.session.wants_more):
            self._left = True
            connection.close()

    def _receive(self, arrived: list[Arrival], sent: float, response: FetchResponse, *, muted: bool) -> None:
        """Take a response: what is not delivered yet is in `arrived` then."""
        self._answered = time = now()
        reads, size = self._states.session.reads, sum([len(part.records) for part in response.partitions])
        throttled = self._handler.count(response, size, sent, time, reads, muted=muted)
        found = self._states.answered(response, time)
        if found is None:
            log.info("fetch session ended", broker=self.broker.id, reason=error_code(response.error).name)
            return
        self._handler.require(response)
        parts, answers = found
        small = size < SMALL_RESPONSE
        arrived += self._handler.take(reads, parts, throttled, time, answers=answers, small=small)
        if small and arrived:
            self._handler.deliver_small(arrived)

    def _begin_look_up(self, time: float) -> None:
        if self._unchecked or self._states.unresolved(time):
            self._look_up_work.set()

    async def _look_up(self) -> None:
        """Compare logs with positions, and find positions. They are not fetched before that, and delay no others."""
        while True:
            await self._look_up_work.wait()
            self._look_up_work.clear()
            self._unchecked = {state: None for state in self._unchecked if state.open and state in self}
            await self._ask_about(list(self._unchecked), self._check_logs)
            await self._ask_about(self._states.unresolved(now()), self._resolve_positions)

    async def _ask_about(
        self, states: list[FetchState], ask: Callable[[dict[FetchState, int]], Awaitable[list[FetchState]]]
    ) -> None:
        """`ask` gets them with the epochs of their leaders, and returns those whose leader has to be looked up."""
        if not states:
            return
        try:
            elsewhere = await ask({state: state.leader_epoch for state in states})
        except (ConnectionLostError, ProtocolError, BrokerError, UnsupportedVersionError) as error:
            self._brokers.lost(self.broker, error)
            elsewhere = [state for state in states if not state.arriving]
        finally:
            self._look_up_due, self._storing = math.inf, ()
        self._handler.send_back(state for state in elsewhere if state in self)
        self._states.touch(states)
        self._wake_up()

    async def _control(self) -> BrokerConnection:
        """Not the fetch connection: an answer there may be held back for as long as max_wait."""
        self._look_up_due = now()
        return await self._brokers.connection(self.broker, "control")

    def _still_led(self, asked: Mapping[FetchState, int]) -> list[FetchState]:
        """What an answer that took long is true of: the others have left, and another broker may have been asked."""
        self._look_up_due = math.inf
        return [state for state, epoch in asked.items() if state in self and state.leader_epoch == epoch]

    async def _check_logs(self, asked: dict[FetchState, int]) -> list[FetchState]:
        """Ask about the positions of partitions that were added."""
        elsewhere, checked = [], list(asked)
        if any(state.epoch >= 0 for state in asked):
            ends = await epoch_ends(await self._control(), asked, self._settings.request_timeout)
            checked = self._still_led(asked)
            elsewhere = find_divergence(ends, checked)
        self._checked = bool(checked)
        for state in checked:
            self._unchecked.pop(state, None)  # not before: without an answer they are still unchecked
            if state.reset_due:
                self._states.need_reset(state)
        return elsewhere

    async def _resolve_positions(self, asked: dict[FetchState, int]) -> list[FetchState]:
        for state in [state for state in asked if self._reset.fails_at_once(state)]:
            self._handler.fail(state, self._reset.refusal(state))
            del asked[state]
        if not asked:
            return []
        for state in asked:
            state.pause(now())
        logs = await self._reset.ask(await self._control(), list(asked))
        # They do not leave while their positions are stored: another fetcher would store others.
        self._storing = self._still_led(asked)
        elsewhere = await self._reset.resolve(self._storing, logs)
        self._handler.forget([state for state in asked if state.failed])
        return elsewhere

    def _end_session(self) -> None:
        """Tell the broker, which has room for a thousand. It evicts those that nobody has used for two minutes.

        Not on the fetch connection, where the broker reads nothing before it has answered.
        """
        closing = self._states.session.close()
        control = self._brokers.present(self.broker)
        if closing is not None and control is not None:
            request = FetchRequest(0, 0, 0, {}, session_id=closing.session_id, session_epoch=closing.epoch)
            with suppress(ConnectionLostError):
                control.send(request, timeout=self._settings.request_timeout)

    async def _wait_for_work(self, time: float) -> None:
        """Until there is room, a new partition, or the end of a pause or rate limit in force at `time`."""
        until = self._states.due
        if (limited := self._handler.held_back(time)) > 0:
            until = min(until, time + limited)
            self._work.clear()
        with anyio.move_on_after(max(until - now(), 0) if until < math.inf else None):
            await self._work.wait()
