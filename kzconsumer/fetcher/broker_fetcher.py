"""One broker's fetch loop: one task, one connection, one request after the other for all its partitions.

Holds the fetch states of the partitions that this broker leads. The FetcherManager starts it and hands it partitions;
one whose leader is elsewhere goes back to the leader finder. The next request is on its way while the last response is
decoded (`delivery`), unless that is small; a partition whose queue is full is left out of it, and delays no other.
A request names only partitions that have changed (`fetch_session`).

A partition of which the broker sends nothing though its log goes on (`EmptyAnswers`) is asked for alone, by a second
task on a connection of its own: the broker may hold that answer back for long, and the others do not wait for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import anyio
import anyio.lowlevel
import msgspec

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import local_start
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED, error_code
from kzconsumer.brokers.protocol.log_reads import (
    ISOLATION_LEVELS,
    FetchedPartition,
    FetchPosition,
    FetchRequest,
    FetchResponse,
)
from kzconsumer.brokers.protocol.versions import FETCH
from kzconsumer.clock import now
from kzconsumer.counters import Counters
from kzconsumer.errors import BrokerError, ConnectionLostError, ProtocolError, SecurityError, UnsupportedVersionError
from kzconsumer.fetcher.delivery import SMALL_RESPONSE, Arrival, Delivery, size_of, take_back
from kzconsumer.fetcher.fetch_session import SESSIONS
from kzconsumer.fetcher.fetch_set import FetchSet
from kzconsumer.fetcher.fetch_state import Answers, FetchState, RateLimit, Throttle
from kzconsumer.fetcher.offset_reset import OffsetReset, find_divergence
from kzconsumer.fetcher.reading import (
    ATTEMPTS,
    NOTHING,
    FetchForm,
    FetchOutcome,
    Looking,
    judge,
    next_look,
    readable_end,
    unreadable,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.records.decode import scan_next_offset
from kzconsumer.settings.sections import FetchSettings

log = get_logger("kzconsumer.fetcher")

# Version of Fetch from which on brokers answer at once when they throttle, and are silent for that time (KIP-219).
MUTES = 8
# Fewest bytes to ask for of a partition whose records expand in decoding.
FEWEST_BYTES = 64 * 1024
# Seconds for which the replica that a leader has named is fetched from; then the leader is asked again. As Java's
# consumer (`metadata.max.age.ms`).
PREFERRED_FOR = 300.0
# Seconds without a request after which a connection that the broker closes is an idle one (`connections.max.idle.ms`).
IDLE = 20.0
# While a full queue keeps a partition out, the broker may hold an answer back only this long.
IMPATIENT_MS = 10
# Seconds between two looks whether a partition that is asked for alone has room again.
PAUSE = 0.05
# Seconds of empty answers after which they are logged. A remote read that is merely slow has ended by then.
SILENCE = 5.0


class BrokerFetcher:
    """Fetches from one broker, for as long as `run` runs."""

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
    ) -> None:
        self.broker = broker
        self._brokers = brokers
        self._settings = settings
        self._isolation = ISOLATION_LEVELS[settings.isolation]
        self._reset = reset
        self._limit = limit
        self._rack = rack
        self._throttle = Throttle(settings.response_bytes)
        self._answered = now()
        self._asked_after = 0.0  # seconds without requests before the last one
        self._looking = read if isinstance(read, Looking) else None
        self._delivery = Delivery(broker, brokers, settings, read, counters)
        self._find_leader = find_leader
        self._counters = counters.of_broker(broker.id)
        self._states = FetchSet(broker.id, self.wake)
        self._alone: deque[FetchState] = deque()  # whose last answer was empty though the log goes on
        self._silence = anyio.Event()  # there is one
        # Whose logs are to be compared with their positions, before they are fetched.
        self._unchecked: set[FetchState] = set()
        self._work = anyio.Event()

    def __contains__(self, state: FetchState) -> bool:
        return state in self._states

    def add(self, states: Iterable[FetchState]) -> None:
        for state in states:
            self._states.add(state)
            state.broker = self.broker.id
            if state.preferred != self.broker.id:  # only leaders can be asked, and it was, before it named this replica
                self._unchecked.add(state)
        self._work.set()

    @property
    def throttled(self) -> bool:
        """A quota of the broker holds this client back."""
        return self._throttle.throttling(now())

    def wake(self) -> None:
        """Look at all partitions: something outside of the fetch loop has changed."""
        self._states.touch_all()
        self._work.set()

    async def run(self) -> None:
        """Runs until cancelled. A connection that fails sends all partitions back to the leader finder."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fetch_alone)
                await self._fetch_together()
        finally:  # of both tasks: another fetcher begins at the positions that they leave
            self._end_session()
            self._send_back(self._states)

    async def _fetch_together(self) -> None:
        connection: BrokerConnection | None = None
        while True:
            await self._work.wait()
            try:
                connection = None
                connection = await self._brokers.connection(self.broker, "fetch")
                try:
                    await self._fetch_from(connection)
                finally:
                    # An answer still in flight must not meet the next connection's requests.
                    self._brokers.drop(connection)
            except (ConnectionLostError, ProtocolError, BrokerError, UnsupportedVersionError) as error:
                if connection is not None and connection.ended_by_peer and self._asked_after > IDLE:
                    self._asked_after = 0.0  # the broker has closed an idle connection, perhaps as we asked
                    self.wake()
                    continue
                reason = str(error)
                if connection is not None and connection.timed_out and not _mutes(connection):
                    self._throttle.unanswered(self._throttle.patience(self._settings.request_timeout))
                    reason += ": if a quota holds its answers back, the next will be smaller"
                if not isinstance(error, SecurityError):  # the pool logs those, once
                    log.warning("broker lost", broker=self.broker.id, reason=reason)
                self._work = anyio.Event()
                # Not one whose records the other task is decoding. It wakes this one afterwards.
                self._send_back(state for state in self._states if not state.decoding)

    async def _fetch_from(self, connection: BrokerConnection) -> None:
        """Fetch until the connection is lost or worn out: the next one continues where this one ends."""
        arrived: list[Arrival] = []
        # Not for looks: they ask for all partitions together, at fixed times.
        opens = self._looking is None and connection.versions.choose(FETCH) >= SESSIONS
        self._states.touch_all()
        try:
            while True:
                # The next request is sent before the last response is decoded, so that the broker works meanwhile. What
                # can go wrong between the two:
                # 1. A batch of the last response is corrupt: decoding sets the position back, and the response that is
                #    on its way is for an offset beyond it. `_take` drops it, as its position is not the state's.
                # 2. The partition is closed, or its position moves (a seek, a reset): dropped likewise.
                # 3. The response is small: it is decoded first. On a quiet topic the request would add to a message's
                #    delay.
                if arrived and size_of(arrived) < SMALL_RESPONSE:
                    await self._deliver(arrived)
                    await anyio.lowlevel.checkpoint()  # the streams have it before the next request is made
                time = now()
                self._work = anyio.Event()  # before the states are looked at: one may be added during the next call
                await self._check_logs()
                await self._resolve_positions(time)
                reply, sent = None, now()
                if self._look(time, arrived) and self._held_back(time) <= 0:
                    request = self._next_request(opens=opens)
                    self._asked_after = sent - self._answered
                    patience = self._throttle.patience(self._settings.request_timeout)
                    reply = connection.send(request, timeout=patience)
                if arrived:
                    await self._deliver(arrived)
                elif reply is None:
                    await self._wait_for_work(time)
                if reply is not None:
                    arrived = self._receive(await reply, sent, muted=_mutes(connection))
                    self._answered = now()
                if connection.worn_out:
                    await self._deliver(arrived)
                    self.wake()
                    return
        finally:
            self._states.session.renew()  # an answer may be lost
            take_back(arrived)

    def _held_back(self, time: float) -> float:
        """Seconds until the next request may go out, by our rate limit and the broker's quota."""
        return max(self._limit.wait(time), self._throttle.wait(time))

    def _look(self, time: float, arrived: Sequence[Arrival]) -> bool:
        """Whether anything is to be asked for."""
        most = min(self._settings.max_bytes, self._throttle.most)
        arriving = {each.state for each in arrived}
        self._send_back(self._states.look(time, self._wanted, most, self._unchecked, arriving))
        return bool(self._states.session)

    def _next_request(self, *, opens: bool) -> FetchRequest:
        asked = self._states.request(opens=opens)
        return FetchRequest(
            max_wait_ms=IMPATIENT_MS if self._states.has_full_queue else int(self._settings.max_wait * 1000),
            min_bytes=1 if self._looking else self._settings.min_bytes,
            max_bytes=1 if self._looking else self._throttle.most,
            partitions=asked.partitions,
            isolation=self._isolation,
            rack=self._rack,
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            forgotten=asked.forgotten,
        )

    def _receive(self, response: FetchResponse, sent: float, *, muted: bool) -> list[Arrival]:
        """Take a response. A function of its own: the caller's frame would keep the last one in memory."""
        found = self._states.answered(response, now())
        if found is None:
            log.info("fetch session ended", broker=self.broker.id, reason=error_code(response.error).name)
            return []
        reads = self._states.session.reads
        throttled = self._accept(response, sent, reads, muted=muted)
        parts, answers = found
        return self._take(reads, parts, throttled, answers=answers)

    def _accept(
        self, response: FetchResponse, sent: float, asked: Mapping[TopicPartition, FetchPosition], *, muted: bool
    ) -> bool:
        """Whether a quota was exceeded. Raises ProtocolError if the broker has refused the request."""
        self._counters.requests.add(now() - sent)
        if response.error:
            raise ProtocolError(f"{self.broker}: fetch refused: {error_code(response.error).name}")
        size = sum(len(part.records) for part in response.partitions)
        time = now()
        self._limit.spend(time, size)
        throttled, most = response.throttle_ms / 1000, 0
        if throttled > 0:
            self._counters.throttled.add(throttled)
            most = sum(position.max_bytes for position in asked.values())
        if self._throttle.answered(time, throttled, size, most, muted=muted):
            log.info("throttled by the broker", broker=self.broker.id, seconds=throttled)
        self._counters.bytes += size
        return throttled > 0

    def _wanted(self, state: FetchState, position: int) -> FetchPosition:
        size = state.max_bytes
        if size == self._settings.max_bytes:  # one that was raised is needed: a batch may be that large
            size = min(size, max(int(size / state.expansion), FEWEST_BYTES))
            size = min(size, self._throttle.most)
        small = self._looking is not None or (state.end is not None and position >= state.end)
        return FetchPosition(position, 1 if small else size, state.leader_epoch)

    def _take(
        self,
        asked: Mapping[TopicPartition, FetchPosition],
        fetched: list[FetchedPartition],
        throttled: bool,
        *,
        answers: Answers | None = None,
        alone: bool = False,
    ) -> list[Arrival]:
        """Advance the positions by the framing of batches, so that the next request can go out before the decoding.

        Not for a small response, which is decoded before the next request anyway, nor for one to a request for a
        partition `alone`: the other task asks for it again as soon as it has a new position. `answers`: those of the
        session, if there is one.
        """
        arrived: list[Arrival] = []
        silent: dict[TopicPartition, FetchedPartition] = {}
        small = alone or sum(len(part.records) for part in fetched) < SMALL_RESPONSE
        for part in fetched:
            state = self._states[part.topic_partition]
            position = asked.get(part.topic_partition)
            if state is not None:
                self._states.touch((state,))
            if state is None or position is None or not state.open or state.position != position.offset:
                continue  # the partition or its position changed while the request was on its way
            outcome = judge(part.error)
            if part.preferred >= 0 and part.preferred != self.broker.id and outcome is FetchOutcome.RECORDS:
                state.prefer(part.preferred, now() + PREFERRED_FOR)
                self._forget([state])
                self._find_leader([state])
                continue
            if outcome is not FetchOutcome.RECORDS and state.preferred == self.broker.id:
                outcome = FetchOutcome.FIND_LEADER  # a follower may lack what the leader has
            if outcome is FetchOutcome.FIND_LEADER or (
                outcome is FetchOutcome.UNREADABLE and state.count_attempt(ATTEMPTS[part.error])
            ):
                where = {**part.topic_partition._asdict(), "broker": self.broker.id}
                if part.error == TOPIC_AUTHORIZATION_FAILED:
                    log.warning("topic may not be read", **where)
                else:
                    log.info("fetch refused, looking up leader", **where, reason=error_code(part.error).name)
                self._send_back([state])
            elif outcome is FetchOutcome.UNREADABLE:
                self._fail(state, unreadable(part.topic_partition, position.offset, error_code(part.error).name))
            elif outcome is FetchOutcome.OUT_OF_RANGE:
                self._states.need_reset(state)
                state.empty.reset()  # if it was asked for alone: the other task looks for its next position
            elif state.end is not None and position.offset >= state.end and not state.verified:
                state.saw_end(readable_end(part, self._isolation), now(), answers)  # and what has come is not wanted
            else:
                end = readable_end(part, self._isolation)
                state.saw_end(end, now(), answers)
                size = len(part.records)
                if self._looking is not None:
                    if self._looking.until(part, position.offset) == end:
                        state.retry_at = next_look(now())  # of those without news, too: all are asked together
                    if position.offset < end:
                        state.decoding = True
                        looked = msgspec.structs.replace(part, records=NOTHING)
                        arrived.append(Arrival(state, looked, position.offset))
                elif size:
                    state.empty.reset()
                    if not small:
                        state.position = scan_next_offset(part.records, position.offset)
                    # No whole batch, or a small response: decoding decides.
                    state.decoding = state.position == position.offset
                    state.queue.reserve(size, state.broker)
                    arrived.append(Arrival(state, part, position.offset))
                elif position.offset < end:
                    silent[part.topic_partition] = part
                else:
                    state.empty.reset()
        if silent:
            served = {part.topic_partition for part in fetched if part.records}
            self._take_empty(asked, silent, served, throttled)
        self._states.move_back(state for state, _, _ in arrived)
        return arrived

    def _take_empty(
        self,
        asked: Mapping[TopicPartition, FetchPosition],
        silent: dict[TopicPartition, FetchedPartition],
        served: set[TopicPartition],
        throttled: bool,
    ) -> None:
        """Of `silent` the answers have no records, though the logs go on."""
        for partition, position in asked.items():  # brokers fill responses in this order
            if partition in served:
                return  # there may have been no room for the rest
            if (part := silent.get(partition)) is not None:
                state, time = self._states[partition], now()
                assert state is not None
                end = readable_end(part, self._isolation)
                if not state.empty.behind:
                    self._alone.append(state)
                    self._silence.set()
                state.empty.take(part, position.offset, state.end, end, self._settings, throttled=throttled, time=time)
                if not state.empty.logged and time - state.empty.since >= SILENCE:
                    state.empty.logged = True
                    log.warning(
                        "no records though the log goes on",
                        **partition._asdict(),
                        broker=self.broker.id,
                        offset=position.offset,
                        end=end,
                        seconds=round(time - state.empty.since, 1),
                    )

    async def _fetch_alone(self) -> None:
        """Ask for one silent partition after the other, each in a request of its own."""
        while True:
            if not self._alone:
                self._silence = anyio.Event()
                await self._silence.wait()
            state = self._alone.popleft()
            if not (state in self and state.empty.behind):
                continue
            time = now()
            if (held := self._held_back(time)) > 0 or not state.fetchable(time) or state.position is None:
                self._alone.append(state)
                await anyio.sleep(max(held, PAUSE))
                continue
            try:
                await self._ask_alone(state, state.position)
            except (ConnectionLostError, ProtocolError, BrokerError, UnsupportedVersionError) as error:
                if not isinstance(error, SecurityError):  # the pool logs those, once
                    log.warning("broker lost", broker=self.broker.id, reason=str(error))
                if state in self:
                    self._send_back([state])
            if not (state in self and state.empty.behind):
                self.wake()
            elif state not in self._alone:
                self._alone.append(state)

    async def _ask_alone(self, state: FetchState, position: int) -> None:
        since, wait, timeout = state.empty.since, state.empty.max_wait, self._settings.request_timeout
        asked = {state.topic_partition: self._wanted(state, position)}
        most, least = self._throttle.most, 1
        request = FetchRequest(int(wait * 1000), least, most, asked, self._isolation, self._rack)
        arrived: list[Arrival] = []
        connection = await self._brokers.connection(self.broker, "alone")
        try:
            sent = now()
            response = await connection.send(request, timeout=self._throttle.patience(timeout) + wait)
            throttled = self._accept(response, sent, asked, muted=_mutes(connection))
            parts = response.partitions
            if not state.empty.behind or state.empty.since != since:
                return  # it was sent back meanwhile: the other task may have asked as well
            if throttled and not parts:
                state.empty.interrupt()
            arrived = self._take(asked, parts, throttled, alone=True)
            await self._deliver(arrived)
            if state.empty.behind and now() - sent < wait / 2:
                state.pause(now())  # before a hole brokers may answer at once (`DelayedFetch`: on an older segment)
        except BaseException:
            self._brokers.drop(connection)  # an answer still in flight must not meet the next request
            raise
        finally:
            take_back(arrived)
        if state.empty.asks_where and (end := state.end) is not None:
            control = await self._brokers.connection(self.broker, "control")
            local = await local_start(control, state.topic_partition, self._isolation, timeout)
            # A seek, another end or a lost broker may have come meanwhile: then nothing is proved.
            same = state in self and (state.position, state.end) == (position, end) and state.empty.asks_where
            if same and state.empty.prove_hole(local, self._settings, now()):
                state.empty.reset()
                state.pass_over(position, end)

    async def _deliver(self, arrived: list[Arrival]) -> None:
        states = [each.state for each in arrived]
        try:
            done = await self._delivery.deliver(arrived)
        finally:
            self._states.touch(states)
        if done.move_back:
            self._states.move_back(done.move_back)
            self._states.session.renew()  # the order of a session is the broker's
        self._forget(done.forget)
        self._send_back(done.send_back)

    def _fail(self, state: FetchState, error: Exception) -> None:
        state.fail(error)
        self._forget([state])

    async def _check_logs(self) -> None:
        """Ask about the positions of partitions that were added."""
        if not self._unchecked:
            return
        self._unchecked = {state for state in self._unchecked if state.open and state in self}
        unchecked = tuple(self._unchecked)
        if any(state.epoch >= 0 for state in unchecked):
            control = await self._brokers.connection(self.broker, "control")
            timeout = self._settings.request_timeout
            self._send_back(await find_divergence(control, unchecked, timeout))
        self._unchecked.difference_update(unchecked)  # not before: without an answer they are still unchecked
        self._states.touch(unchecked)
        for state in unchecked:
            if state.reset_due:
                self._states.need_reset(state)

    async def _resolve_positions(self, time: float) -> None:
        due = self._states.unresolved(time)
        if self._reset.refuses:
            for state in due:
                self._fail(state, self._reset.refusal(state))
            return
        if not due:
            return
        for state in due:
            state.pause(time)
        # Not on the fetch connection: an answer there may be held back for as long as max_wait.
        control = await self._brokers.connection(self.broker, "control")
        self._send_back(await self._reset.resolve(control, due))
        self._forget([state for state in due if state.failed])

    def _send_back(self, states: Iterable[FetchState]) -> None:
        leaving = list(states)
        self._forget(leaving)
        for state in leaving:
            state.preferred = None  # the leader names it again, if it still wants it
            state.pause(now())
        self._find_leader(state for state in leaving if state.open and not state.failed)

    def _forget(self, states: Iterable[FetchState]) -> None:
        for state in states:
            state.empty.reset()  # the next broker, or the same one again, is asked together with others first
            self._states.remove(state)

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
        if (limited := self._held_back(time)) > 0:
            until = min(until, time + limited)
            self._work = anyio.Event()
        with anyio.move_on_after(max(until - now(), 0) if until < math.inf else None):
            await self._work.wait()


def _mutes(connection: BrokerConnection) -> bool:
    """Whether the broker answers at once when it throttles."""
    return connection.versions.choose(FETCH) >= MUTES
