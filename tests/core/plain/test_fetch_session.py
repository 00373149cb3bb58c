"""A member's fetch session and a broker's, written apart: whatever happens, the broker reads what is wanted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.log_reads import FetchedPartition, FetchPosition, FetchResponse
from kzconsumer.fetcher.fetch_session import LARGEST_EPOCH, FetchSession, SessionRequest
from kzconsumer.fetcher.fetch_set import FetchSet
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.model import TopicPartition
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import TOPIC, progress
from tests.support.extent import extent
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.fetch_sessions import SLOTS, FetchSessions
from tests.support.simulated.kafka_frames import Fetch, FetchedFrom, Part

PARTITIONS = [TopicPartition(topic, number) for topic in "tu" for number in range(3)]
WHICH = st.sampled_from(PARTITIONS)
POSITIONS = st.builds(FetchPosition, st.integers(0, 3), st.sampled_from((1, 1000)), st.integers(0, 1), st.just(-1))
SOME = st.sets(WHICH)
THROTTLES = st.sampled_from((0, 0, 0, 1, 1000))
ROUNDS = st.tuples(st.dictionaries(WHICH, POSITIONS), st.none() | WHICH, SOME, THROTTLES)
"""What is wanted, what is not wanted any more, what has records, and for how long a quota holds the client back."""
OPENS = st.sampled_from((True, True, True, False))
ORDER = PARTITIONS[::-1]


class SessionMachine(RuleBasedStateMachine):
    """Wants, answers, losses and evictions, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.session = FetchSession()
        self.broker = FetchSessions(lambda: self.now)
        self.wanted: dict[TopicPartition, FetchPosition] = {}
        self.ends = dict.fromkeys(PARTITIONS, 5)
        self.failing: set[TopicPartition] = set()
        self.reported: dict[TopicPartition, int] = {}
        self.in_flight: dict[TopicPartition, FetchPosition] | None = None
        """What was wanted when the request was made."""
        self.number = 0
        """Of the session of the last answer. A full request ends it."""
        self.before: set[TopicPartition] | None = set()
        """What the request before had read; None since it was to be a new one."""

    @rule(partition=WHICH, position=POSITIONS)
    def want(self, partition: TopicPartition, position: FetchPosition) -> None:
        self.session.want(partition, position)
        self.wanted[partition] = position

    @rule(partition=WHICH)
    def leave(self, partition: TopicPartition) -> None:
        self.session.leave(partition)
        self.wanted.pop(partition, None)

    @rule(partition=WHICH)
    def grow(self, partition: TopicPartition) -> None:
        self.ends[partition] += 1

    @rule(partitions=SOME)
    def fail(self, partitions: set[TopicPartition]) -> None:
        self.failing = partitions

    @rule(seconds=st.sampled_from((1.0, 200.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def evict(self) -> None:
        """Or the broker was restarted, which may give the same number to another's session."""
        self.broker.evict()

    @rule()
    def reorder(self) -> None:
        self.session.renew()
        self.before = None

    @rule(slots=st.sampled_from((0, 1, SLOTS, SLOTS, SLOTS)))
    def have_slots(self, slots: int) -> None:
        self.broker.slots = slots

    @rule()
    def open_another(self) -> None:
        """Another member's, which may evict this one."""
        request = Fetch(0.0, 0, 0, [FetchedFrom(PARTITIONS[0], 0, 1, -1)], 0, 0, [], "")
        self.broker.begin(request).finish([Part(PARTITIONS[0], 0, 1, 0)])

    @precondition(lambda self: self.session.goes_on and self.in_flight is None)
    @rule()
    def fetch_for_years(self) -> None:
        for session in self.broker.sessions.values():
            if session.number == self.session.number and session.epoch == self.session.next_epoch:
                session.epoch = self.session.next_epoch = LARGEST_EPOCH

    @precondition(lambda self: self.in_flight is None)
    @rule(opens=OPENS)
    def ask(self, opens: bool) -> None:
        """A request is made, of all that is wanted by then."""
        self.in_flight = dict(self.wanted)
        request = self.request = self.session.request(ORDER, opens=opens)
        assert self.session.reads == self.wanted
        assert not set(request.partitions) & set(request.forgotten)
        if request.epoch <= 0:
            assert list(request.partitions) == [each for each in ORDER if each in self.wanted]
        assert request.session_id == (self.number if opens else 0)
        if self.session.same_partitions:
            assert self.wanted.keys() == self.before
        self.before = set(self.wanted)

    @precondition(lambda self: self.in_flight is not None)
    @rule(served=SOME, reached=st.booleans())
    def lose(self, served: set[TopicPartition], reached: bool) -> None:
        """The connection, before or after the broker has the request."""
        if reached:
            self._answer(self.request, served)
        self.session.renew()
        self.before = None
        self.in_flight = None

    @precondition(lambda self: self.in_flight is not None)
    @rule(served=SOME, throttle_ms=THROTTLES)
    def answer(self, served: set[TopicPartition], throttle_ms: int) -> None:
        wanted, self.in_flight = self.in_flight, None
        assert wanted is not None
        response, read = self._answer(self.request, served, throttle_ms)
        if not response.error or response.error == error_codes.FETCH_SESSION_ID_NOT_FOUND:
            self.number = response.session_id
        usable = self.session.answered(response)
        assert usable == (not response.error)
        if not usable:
            assert not self.session.goes_on
            return
        assert read == wanted, "the broker reads something else"
        assert list(read) == list(self.session.reads), "in another order"
        in_session = self.request.epoch > 0 and self.session.goes_on
        assert self.session.speaks_for_all == (in_session and not throttle_ms), "an empty answer may be the throttling"
        if self.session.speaks_for_all:
            named = {part.topic_partition for part in response.partitions}
            for partition in wanted.keys() - named:
                assert self.ends[partition] == self.reported[partition], "it has news"
                assert partition not in served | self.failing
        for part in response.partitions:
            self.reported[part.topic_partition] = part.high_watermark

    @rule(opens=OPENS, rounds=st.lists(ROUNDS, min_size=1, max_size=4))
    def exchange(
        self,
        opens: bool,
        rounds: list[tuple[dict[TopicPartition, FetchPosition], TopicPartition | None, set[TopicPartition], int]],
    ) -> None:
        """Several requests and answers, one after the other: of a session, if nothing happens to it."""
        for wants, left, served, throttle_ms in rounds:
            for partition, position in wants.items():
                self.want(partition, position)
            if left is not None:
                self.leave(left)
            if self.in_flight is None:
                self.ask(opens)
            self.answer(served, throttle_ms)

    def _answer(
        self, request: SessionRequest, served: set[TopicPartition], throttle_ms: int = 0
    ) -> tuple[FetchResponse, dict[TopicPartition, FetchPosition]]:
        """What the broker answers, and what it has read."""
        asked = [
            FetchedFrom(where, position.offset, position.max_bytes, position.leader_epoch)
            for where, position in request.partitions.items()
        ]
        answer = self.broker.begin(
            Fetch(0.0, 0, 0, asked, request.session_id, request.epoch, list(request.forgotten), "")
        )
        read = {each.partition: FetchPosition(each.offset, each.max_bytes, each.leader_epoch)
                for each in answer.request.partitions}  # fmt: skip
        if throttle_ms and not answer.error:
            return FetchResponse(0, throttle_ms, [], answer.throttle()), read
        error, number, parts = answer.finish([self._part(each, served) for each in read])
        fetched = [
            FetchedPartition(p.partition, p.error, p.high_watermark, -1, p.log_start, (), memoryview(p.records))
            for p in parts
        ]
        return FetchResponse(error, 0, fetched, number), read

    def _part(self, partition: TopicPartition, served: set[TopicPartition]) -> Part:
        if partition in self.failing:
            return Part(partition, frames.NOT_LEADER)
        return Part(partition, frames.NONE, self.ends[partition], 0, b"records" if partition in served else b"")

    @invariant()
    def wants_something(self) -> None:
        assert bool(self.session) == bool(self.wanted)


SessionMachine.TestCase.settings = settings(max_examples=extent(100, 1000), stateful_step_count=30, deadline=None)
TestSessions = SessionMachine.TestCase
T0, T1 = PARTITIONS[:2]
HERE, THERE = FetchPosition(1, 1000, 0), FetchPosition(2, 1000, 0)


def opened(*partitions: TopicPartition) -> FetchSession:
    """A session, number 7, that reads these."""
    session = FetchSession()
    for partition in partitions:
        session.want(partition, HERE)
    session.request(partitions, opens=True)
    assert session.answered(FetchResponse(0, 0, [part(each) for each in partitions], 7))
    return session


def part(partition: TopicPartition, records: bytes = b"") -> FetchedPartition:
    return FetchedPartition(partition, 0, 1, 1, 0, (), memoryview(records))


def test_a_request_names_only_what_has_changed() -> None:
    session = opened(T0, T1)
    assert session.request((), opens=True) == SessionRequest({}, [], 7, 1)
    session.answered(FetchResponse(0, 0, [], 7))
    session.want(T1, THERE)
    session.leave(T0)
    assert session.request((), opens=True) == SessionRequest({T1: THERE}, [T0], 7, 2)
    session.answered(FetchResponse(0, 0, [], 7))
    assert session.request((), opens=True) == SessionRequest({}, [], 7, 3)


def test_what_was_given_up_and_wanted_again_at_the_same_place_is_not_named() -> None:
    session = opened(T0)
    session.leave(T0)
    session.want(T0, HERE)
    assert session.request((), opens=True) == SessionRequest({}, [], 7, 1)


def test_every_error_of_a_session_has_all_named_again() -> None:
    for error in (
        error_codes.FETCH_SESSION_ID_NOT_FOUND,
        error_codes.INVALID_FETCH_SESSION_EPOCH,
        error_codes.FETCH_SESSION_TOPIC_ID_ERROR,
        error_codes.UNKNOWN_TOPIC_ID,
        error_codes.INCONSISTENT_TOPIC_ID,
    ):
        session = opened(T0, T1)
        session.want(T0, THERE)
        session.request((), opens=True)
        assert not session.answered(FetchResponse(error, 0, [], 0))
        request = session.request((T1, T0), opens=True)
        assert list(request.partitions.items()) == [(T1, HERE), (T0, THERE)]
        assert request.epoch == 0
        # The former one is ended by the same request, unless the broker does not know it.
        assert request.session_id == (0 if error == error_codes.FETCH_SESSION_ID_NOT_FOUND else 7)


def test_an_error_of_a_session_in_answer_to_a_full_request_is_no_reason_to_ask_again() -> None:
    session = FetchSession()
    session.want(T0, HERE)
    session.request((T0,), opens=True)
    assert session.answered(FetchResponse(error_codes.FETCH_SESSION_ID_NOT_FOUND, 0, [], 0))


def test_a_partition_that_was_to_be_forgotten_ends_the_session() -> None:
    session = opened(T0, T1)
    session.leave(T1)
    session.request((), opens=True)
    assert session.answered(FetchResponse(0, 0, [part(T1, b"records")], 7))
    assert not session.speaks_for_all
    assert session.request((T0,), opens=True) == SessionRequest({T0: HERE}, (), 7, 0)


def test_a_partition_that_the_broker_has_left_out_is_named_again() -> None:
    session = FetchSession()
    for partition in (T0, T1):
        session.want(partition, HERE)
    session.request((T0, T1), opens=True)
    assert session.answered(FetchResponse(0, 0, [part(T1)], 7))
    assert session.request((), opens=True) == SessionRequest({T0: HERE}, [], 7, 1)


def test_the_end_of_a_session() -> None:
    session = opened(T0)
    assert session.close() == SessionRequest({}, (), 7, -1)
    assert session.close() is None
    assert FetchSession().close() is None


def test_a_partition_is_left_out_if_what_others_put_fills_its_queue() -> None:
    """It is not looked at for a reason of its own."""
    queue = ChunkQueue(100)
    partitions = FetchSet(1, lambda: None)
    states = [FetchState(progress(number), queue, 0, 1000, broker=1) for number in range(2)]
    for state in states:
        partitions.add(state)

    def look() -> list[TopicPartition]:
        partitions.look(0.0, lambda state, position: FetchPosition(position, 1), 1, ())
        return list(partitions.request(opens=False).partitions)

    assert look() == [state.topic_partition for state in states]
    queue.reserve(50, 1)
    queue.reserve(70, 2)
    assert look() == []
    assert partitions.has_full_queue
    queue.give_back(70, 2)
    assert look() == [state.topic_partition for state in states]


def test_without_a_session_an_answer_about_all_is_a_reading_of_all() -> None:
    """Not one of a broker that throttles, which is empty, nor one about some of them."""
    queue, partitions = ChunkQueue(100), FetchSet(1, lambda: None)
    for number in range(2):
        partitions.add(FetchState(progress(number), queue, 0, 1000, broker=1))
    everything = [part(TopicPartition(TOPIC, number)) for number in range(2)]

    def readings(throttle_ms: int, parts: list[FetchedPartition]) -> list[float]:
        partitions.look(0.0, lambda state, position: FetchPosition(position, 1), 1, ())
        partitions.request(opens=False)
        found = partitions.answered(FetchResponse(0, throttle_ms, parts), 5.0)
        assert found is not None
        return [found[1].at] if found[1] is not None else []

    assert readings(100, []) == readings(100, everything) == readings(0, everything[:1]) == []
    assert readings(0, everything) == [5.0]


KINDS = ("add", "add", "remove", "remove a former", "close", "fill", "look", "answer")
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2)),
    min_size=10,
    max_size=25,
)


@given(STEPS)
def test_a_set_asks_for_its_present_states_and_keeps_nothing_of_others(steps: list[tuple[str, int]]) -> None:
    """A seek, a replay or a claim puts another state in the place of one. The position of partition 2 is to be found
    first. An answer is that of the states for which it was asked: another one's log may not have been compared yet.
    """
    woken = list[None]()
    partitions = FetchSet(1, lambda: woken.append(None))
    queues = [ChunkQueue(100), ChunkQueue(100)]
    present = dict[TopicPartition, FetchState]()
    former = list[FetchState]()
    full = [False, False]
    asked = dict[TopicPartition, FetchState]()

    def look() -> set[TopicPartition]:
        partitions.look(0.0, lambda state, position: FetchPosition(position, 1), 1, ())
        places = set(partitions.request(opens=False).partitions)
        asked.clear()
        asked.update({place: present[place] for place in places})
        return places

    for what, number in steps:
        place = TopicPartition(TOPIC, number)
        if what == "add":
            if place in present:
                former.append(present[place])
            present[place] = FetchState(
                progress(number), queues[number % 2], None if number == 2 else 0, 1000, broker=1
            )
            partitions.add(present[place])
        elif what == "remove" and place in present:
            former.append(present.pop(place))
            partitions.remove(former[-1])
        elif what == "remove a former" and former:
            partitions.remove(former[number % len(former)])
        elif what == "close" and place in present:
            present[place].progress.close()
            partitions.touch((present[place],))
            look()
            former.append(present.pop(place))
        elif what == "answer" and asked:
            found = partitions.answered(FetchResponse(0, 0, [part(place) for place in asked]), 0.0)
            assert found is not None
            theirs = {place for place, state in asked.items() if present.get(place) in (state, None)}
            assert {each.topic_partition for each in found[0]} == theirs
            asked.clear()
        elif what == "fill":
            queue, full[number % 2] = queues[number % 2], not full[number % 2]
            queue.reserve(100, 1) if full[number % 2] else queue.give_back(100, 1)
        elif what == "look":
            assert look() == {each for each in present if each.partition != 2 and not full[each.partition % 2]}
            assert partitions.unresolved(0.0) == [state for each, state in present.items() if each.partition == 2]
        assert {each.topic_partition: each for each in partitions} == present
        assert all((partitions[each] is state, state in partitions) == (True, True) for each, state in present.items())
    for state in present.values():
        partitions.remove(state)
    woken.clear()
    for queue in queues:
        queue.hold(progress(0), None)  # listeners are notified
    assert not woken


def test_epochs_wrap() -> None:
    session = opened(T0)
    session.next_epoch = LARGEST_EPOCH
    assert session.request((), opens=True).epoch == LARGEST_EPOCH
    session.answered(FetchResponse(0, 0, [], 7))
    assert session.request((), opens=True).epoch == 1


def test_a_session_that_is_given_up_while_a_request_is_in_flight_ends_with_its_answer() -> None:
    session = opened(T0)
    session.request((), opens=True)
    session.renew()
    assert session.answered(FetchResponse(0, 0, [part(T0, b"records")], 7))
    assert not session.goes_on
    assert session.request((T0,), opens=True) == SessionRequest({T0: HERE}, (), 7, 0)
