"""What an answer of a broker counts for; what proves a hole at the end of a log: two in a row without records, of which
all is true that must be.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer import clock
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import FetchedPartition, FetchPosition
from kzconsumer.counters import Counters
from kzconsumer.fetcher.fetch_rules import EmptyAnswers
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.response_handler import ResponseHandler
from kzconsumer.fetcher.throttle import RateLimit
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.records.decode import Decoded
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import progress
from tests.support.record_sets import Record, record_batch

EMPTY = FetchedPartition(TopicPartition("t", 0), 0, 9, 9, 0, (), memoryview(b""))


class Answer(NamedTuple):
    """`interrupted`: an error came before it."""

    first: int = 5
    until: int | None = 9
    end: int = 9
    throttled: bool = False
    preferred: int = -1
    interrupted: bool = False

    def may_prove(self, goal: int) -> bool:
        return self.end >= goal and not self.throttled and self.preferred < 0


USUAL = Answer()
ANSWERS = st.lists(
    st.sampled_from(
        [
            *[USUAL] * 6,
            *(USUAL._replace(**each) for each in ({"first": 6}, {"until": None}, {"end": 8}, {"end": 5}, {"end": 4})),
            *(USUAL._replace(**each) for each in ({"throttled": True}, {"preferred": 2}, {"interrupted": True})),
        ]
    ),
    max_size=8,
)


@given(ANSWERS)
def test_only_two_answers_in_a_row_that_may_prove_a_hole_are_as_good_as_a_proof(answers: list[Answer]) -> None:
    empty = EmptyAnswers()
    before: Answer | None = None
    asked: tuple[int, int | None] = (-1, None)
    goal = 0  # for ever: as far as any answer to this has said that the log goes
    settings, behind = FetchSettings(), list[float]()
    for time, each in enumerate(answers):
        if each.interrupted:
            empty.interrupt()
            before = None
        part = msgspec.structs.replace(EMPTY, preferred=each.preferred)
        empty.take(part, each.first, each.until, each.end, settings, throttled=each.throttled, time=float(time))
        at_the_end = each.first >= each.end
        if not at_the_end and (asked != (each.first, each.until) or (each.until is None and each.end > goal)):
            before = None
            asked, goal = (each.first, each.until), each.end if each.until is None else each.until
        follows = before is not None and before.may_prove(goal)
        assert empty.asks_where == (each.may_prove(goal) and follows and not at_the_end)
        assert empty.behind == (not at_the_end)
        behind = [] if at_the_end else [*behind, float(time)]
        longer = settings.max_wait * 2 ** len(behind)  # twice as long each time
        assert empty.max_wait == (min(longer, settings.request_timeout) if behind else 0.0)
        assert not behind or empty.since == behind[0]
        before = None if at_the_end else each


@given(st.sampled_from((None, 9)), st.sampled_from((None, 5, 6)), st.sampled_from((1.0, 31.0)))
def test_what_is_read_for_ever_ends_in_a_hole_only_if_the_broker_has_it_on_its_own_disks(
    until: int | None, local: int | None, waited: float
) -> None:
    """A slow read of tiered storage looks the same. A range has to end at some time."""
    empty = EmptyAnswers()
    for time in (0.0, 0.5):
        empty.take(EMPTY, 5, until, 9, FetchSettings(), throttled=False, time=time)
    assert empty.asks_where
    proved = empty.prove_hole(local, FetchSettings(), waited)
    assert proved == (local == 5 or (local is None and until is not None and waited > 30))
    assert empty.hole_until == (9 if proved else None)
    empty.take(EMPTY, 5, until, 9, FetchSettings(), throttled=False, time=40.0)
    assert empty.asks_where != proved, "it is asked once"
    empty.take(EMPTY, 5, until, 10, FetchSettings(), throttled=False, time=41.0)
    assert until is not None or empty.hole_until is None, "the log has grown"
    empty.reset()
    assert empty.hole_until is None


def unread(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
    raise AssertionError("nothing is decoded here")


@given(st.sampled_from(("there", "gone", "another position", "closed", "not asked for")), st.booleans())
def test_an_answer_counts_only_for_the_state_and_position_that_were_asked_for(now_is: str, small: bool) -> None:
    """The partition may have gone to another broker, or have moved, while the request was on its way."""
    broker, sent_back = Broker(1, "b", 9092), list[FetchState]()
    handler = ResponseHandler(
        broker, cast(Brokers, None), FetchSettings(), unread, RateLimit(None), sent_back.extend,
        Counters(), lambda: None,
    )  # fmt: skip
    state = FetchState(progress(0), ChunkQueue(1 << 20), 5, 1 << 20, broker=1)
    place = state.topic_partition
    if now_is != "gone":
        handler.states.add(state)
    state.position = 6 if now_is == "another position" else 5
    if now_is == "closed":
        state.progress.close()
    asked = {} if now_is == "not asked for" else {place: FetchPosition(5, 1 << 20)}
    records = memoryview(record_batch([Record(b"k", b"v" * (10 if small else 100_000))], base_offset=5))
    part = msgspec.structs.replace(EMPTY, topic_partition=place, records=records)
    arrived = handler.take(asked, [part], throttled=False, time=clock.now(), small=small)
    assert [each.state for each in arrived] == [state] * (now_is == "there")
    assert state.queue.filled[1] == len(records) * (now_is == "there")
    assert not sent_back
