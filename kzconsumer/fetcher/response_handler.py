"""Takes the answers to a fetch loop: positions move, records go to the streams, partitions with other leaders leave.

Of the fetch loop (`broker_fetcher`) and of the task that asks for one partition alone (`silent_partitions`), which
share the partitions, the broker's quota and the rate limit. Sends nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import (
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR,
    error_code,
)
from kzconsumer.brokers.protocol.log_reads import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    FetchedPartition,
    FetchPosition,
    FetchResponse,
)
from kzconsumer.clock import now
from kzconsumer.counters import Counters
from kzconsumer.errors import ProtocolError
from kzconsumer.fetcher.decode_and_queue import Arrival, Delivery
from kzconsumer.fetcher.fetch_rules import (
    ATTEMPTS,
    LOOK_BYTES,
    NOTHING,
    FetchForm,
    FetchOutcome,
    Looking,
    judge,
    next_look,
    readable_end,
    unreadable,
)
from kzconsumer.fetcher.fetch_set import FetchSet
from kzconsumer.fetcher.fetch_state import Answers, FetchState, OpenTransaction
from kzconsumer.fetcher.offset_reset import count_refusal
from kzconsumer.fetcher.throttle import SLOW, RateLimit, Throttle
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.records.decode import scan_next_offset
from kzconsumer.settings.sections import FetchSettings

log = get_logger("kzconsumer.fetcher")

# Fewest bytes to ask for of a partition whose records expand in decoding.
FEWEST_BYTES = 64 * 1024
# Seconds for which the replica that a leader has named is fetched from; then the leader is asked again. As Java's
# consumer (`metadata.max.age.ms`).
PREFERRED_FOR = 300.0
# Seconds of empty answers after which they are logged. A remote read that is merely slow has ended by then.
SILENCE = 5.0
# Seconds for which brokers let a transaction be open, unless `transaction.max.timeout.ms` is set. One that is open for
# longer may never end: the records behind it wait, and the member sees no end of the log beyond it.
OPEN_FOR = 900.0


class ResponseHandler:
    """Of one fetch loop."""

    def __init__(
        self,
        broker: Broker,
        brokers: Brokers,
        settings: FetchSettings,
        read: FetchForm,
        limit: RateLimit,
        find_leader: Callable[[Iterable[FetchState]], None],
        counters: Counters,
        wake: Callable[[], None],
    ) -> None:
        """`find_leader` gets partitions that are to be read elsewhere; `wake` is called when a queue has room again."""
        self.broker = broker
        self.states = FetchSet(broker.id, wake)
        self.throttle = Throttle(settings.response_bytes)
        self.isolation = ISOLATION_LEVELS[settings.isolation]
        self.looking = read if isinstance(read, Looking) else None
        self.silent: deque[FetchState] = deque()
        """Those whose last answer was empty though the log goes on."""
        self.silence = asyncio.Event()
        """Set when there is one more."""
        self._unlogged: dict[FetchState, None] = {}  # those with an open transaction
        self._settings = settings
        self._limit = limit
        self._delivery = Delivery(broker, brokers, settings, read, counters)
        self._find_leader = find_leader
        self._counters = counters.of_broker(broker.id)

    def held_back(self, time: float) -> float:
        """Seconds until the next request may go out, by our rate limit and the broker's quota."""
        return max(self._limit.wait(time), self.throttle.wait(time))

    def wanted(self, state: FetchState, position: int) -> FetchPosition:
        if self.looking is not None:
            return FetchPosition(position, LOOK_BYTES, state.leader_epoch)
        size = state.max_bytes
        if not state.cut_short:
            size = min(size, max(int(size / state.expansion), FEWEST_BYTES))
            size = min(size, self.throttle.most)
        small = state.end is not None and position >= state.end
        return FetchPosition(position, 1 if small else size, state.leader_epoch)

    def count(
        self,
        response: FetchResponse,
        size: int,
        sent: float,
        time: float,
        asked: Mapping[TopicPartition, FetchPosition],
        *,
        muted: bool,
    ) -> bool:
        """Count the answer to a request for `asked`, of `size` bytes, at `time`. Whether a quota was exceeded."""
        self._counters.requests.add(time - sent)
        self._counters.bytes += size
        self._limit.spend(time, size)
        throttled, most = response.throttle_ms / 1000, 0
        if throttled > 0:
            self._counters.throttled.add(throttled)
            most = sum(position.max_bytes for position in asked.values())
        slow = time - sent > SLOW * self._settings.request_timeout
        if self.throttle.answered(time, throttled, size, most, muted=muted, slow=slow):
            log.info("throttled by the broker", broker=self.broker.id, seconds=throttled)
        return throttled > 0

    def require(self, response: FetchResponse) -> None:
        """Raises ProtocolError if the broker has refused the request."""
        if response.error:
            raise ProtocolError(f"{self.broker}: fetch refused: {error_code(response.error).name}")

    def take(
        self,
        asked: Mapping[TopicPartition, FetchPosition],
        fetched: list[FetchedPartition],
        throttled: bool,
        time: float,
        *,
        answers: Answers | None = None,
        small: bool,
    ) -> list[Arrival]:
        """Advance the positions by the framing of batches, so that the next request can go out before the decoding.

        Not for a `small` response, which is decoded before the next request anyway, nor for one to a request for a
        partition alone: the other task asks for it again as soon as it has a new position. `answers`: those of the
        session, or of a broker without sessions, of which this is the last one. A partition of which it says what they
        had said costs nothing more.
        """
        arrived: list[Arrival] = []
        with_records: list[FetchState] = []
        silent: dict[TopicPartition, FetchedPartition] = {}
        for part in fetched:
            state = self.states[part.topic_partition]
            position = asked.get(part.topic_partition)
            if state is not None:
                if self.isolation == READ_COMMITTED:
                    self._note_transaction(state, part, time)
                if state.answers is answers and not part.records and self._is_as_before(state, part):
                    continue
                self.states.touch((state,))
            if state is None or position is None or not state.open or state.position != position.offset:
                continue  # the partition or its position changed while the request was on its way
            if (part.error or part.preferred >= 0) and self._redirect_or_fail(state, part, position.offset, time):
                continue
            end, size = readable_end(part, self.isolation), len(part.records)
            unwanted = state.end is not None and position.offset >= state.end and not state.verified
            state.saw_end(end, time, answers)
            if unwanted:
                continue  # one answer was to show whether the log holds the position
            if size:
                with_records.append(state)
            if self.looking is not None:
                arrived += self._looked(self.looking, state, part, position, end, time)
            elif size:
                arrived.append(self._advance(state, part, position, small=small))
            elif position.offset < end:
                silent[part.topic_partition] = part
            elif state.empty.behind:
                state.empty.reset()
        if self._unlogged:
            self._log_transactions(time)
        if silent:
            served = {part.topic_partition for part in fetched if part.records}
            self._take_empty(asked, silent, served, throttled, time)
        self.states.move_back(with_records)
        return arrived

    def _looked(
        self, looking: Looking, state: FetchState, part: FetchedPartition, asked: FetchPosition, end: int, time: float
    ) -> list[Arrival]:
        """What a look at the log has found: that it goes on beyond what was asked for, up to `end`, or nothing."""
        looking.weigh(part, asked.offset)
        if looking.until(part, asked.offset) == end:
            state.retry_at = next_look(time)  # of those without news, too: all are asked together
        if asked.offset >= end:
            return []
        state.decoding = state.arriving = True
        return [Arrival(state, msgspec.structs.replace(part, records=NOTHING), asked.offset, asked.max_bytes)]

    def _advance(self, state: FetchState, part: FetchedPartition, asked: FetchPosition, *, small: bool) -> Arrival:
        """Records have come: the position moves behind them, or decoding them is to move it."""
        if state.empty.behind:
            state.empty.reset()
        if not small:
            state.position = scan_next_offset(part.records, asked.offset)
        state.decoding = state.position == asked.offset  # of a small response, or if it has no whole batch
        state.arriving = True
        state.queue.reserve(len(part.records), state.broker)
        return Arrival(state, part, asked.offset, asked.max_bytes)

    def _note_transaction(self, state: FetchState, part: FetchedPartition, time: float) -> None:
        first, end = part.last_stable_offset, part.high_watermark
        if first < 0:
            return  # the answer does not say: before 0.11, and with an error
        found = state.open_transaction
        if first >= end:
            state.open_transaction = None
        elif found is None or found.offset != first:
            state.open_transaction = OpenTransaction(first, time, end)
        else:
            found.end = end
        if state.open_transaction is not None and not state.open_transaction.logged:
            self._unlogged[state] = None

    def _log_transactions(self, time: float) -> None:
        """Log those that have been open for long, once. A session says nothing of them while no record comes."""
        for state in list(self._unlogged):
            found = state.open_transaction
            if found is None or found.logged or state not in self.states:
                del self._unlogged[state]
            elif time - found.since >= OPEN_FOR:
                found.logged = True
                log.warning(
                    "transaction not ended, records behind it wait",
                    **state.topic_partition._asdict(),
                    offset=found.offset,
                    end=found.end,
                    seconds=round(time - found.since),
                )

    def _redirect_or_fail(self, state: FetchState, part: FetchedPartition, offset: int, time: float) -> bool:
        """Do what an error asks for, or a leader that names a replica to read from; False if it is neither."""
        outcome = judge(part.error)
        if part.preferred >= 0 and part.preferred != self.broker.id and outcome is FetchOutcome.RECORDS:
            state.prefer(part.preferred, time + PREFERRED_FOR)
            self.forget([state])
            self._find_leader([state])
            return True
        if outcome is not FetchOutcome.RECORDS and state.preferred == self.broker.id:
            outcome = FetchOutcome.FIND_LEADER  # a follower may lack what the leader has
        if outcome is FetchOutcome.FIND_LEADER or (
            outcome is FetchOutcome.UNREADABLE and state.count_attempt(ATTEMPTS)
        ):
            where = {**part.topic_partition._asdict(), "broker": self.broker.id}
            if part.error == TOPIC_AUTHORIZATION_FAILED:
                log.warning("topic may not be read", **where)
            elif part.error == UNKNOWN_SERVER_ERROR:
                if state.count_refusal(time):
                    log.warning("broker fails to read its log, retrying", **where, offset=offset)
            else:
                reason = error_code(part.error).name
                log.info("fetch refused, looking up leader", **where, reason=reason, again=True)
                count_refusal(state, self.broker.id, reason)
            self.send_back([state])
        elif outcome is FetchOutcome.UNREADABLE:
            self.fail(state, unreadable(part.topic_partition, offset, error_code(part.error).name))
        elif outcome is FetchOutcome.OUT_OF_RANGE:
            self.states.need_reset(state)
            state.empty.reset()  # if it was asked for alone: the other task looks for its next position
        return outcome is not FetchOutcome.RECORDS

    def _is_as_before(self, state: FetchState, part: FetchedPartition) -> bool:
        """The partition has neither records nor news, and may have none."""
        end = readable_end(part, self.isolation)
        return (
            not state.may_learn
            and end == state.high_watermark
            and part.error == NONE
            and part.preferred < 0
            and self.looking is None
        )

    def _take_empty(
        self,
        asked: Mapping[TopicPartition, FetchPosition],
        silent: dict[TopicPartition, FetchedPartition],
        served: set[TopicPartition],
        throttled: bool,
        time: float,
    ) -> None:
        """Of `silent` the answers have no records, though the logs go on."""
        for partition, position in asked.items():  # brokers fill responses in this order
            if partition in served:
                return  # there may have been no room for the rest
            if (part := silent.get(partition)) is not None:
                state = self.states[partition]
                assert state is not None
                end = readable_end(part, self.isolation)
                if not state.empty.behind:
                    self.silent.append(state)
                    self.silence.set()
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

    def deliver_small(self, arrived: list[Arrival]) -> None:
        """Deliver those of a small response that need no thread and are intact; the others stay in the list."""
        self._delivery.deliver_small(arrived)

    async def deliver(self, arrived: list[Arrival]) -> None:
        states = [each.state for each in arrived]
        try:
            done = await self._delivery.deliver(arrived)
        finally:
            for state in states:
                state.decoding = state.arriving = False
            self.states.touch(states)
        if done.move_back:
            self.states.move_back(done.move_back)
            self.states.session.renew()  # the order of a session is the broker's
        self.forget(done.forget)
        self.send_back(done.send_back)

    def fail(self, state: FetchState, error: Exception) -> None:
        state.fail(error)
        self.forget([state])

    def send_back(self, states: Iterable[FetchState]) -> None:
        leaving = list(states)
        if not leaving:
            return
        self.forget(leaving)
        for state in leaving:
            state.preferred = None  # the leader names it again, if it still wants it
            state.pause(now())
        self._find_leader(state for state in leaving if state.open and not state.failed)

    def forget(self, states: Iterable[FetchState]) -> None:
        for state in states:
            state.empty.reset()  # the next broker, or the same one again, is asked together with others first
            self.states.remove(state)
