"""What an answer does to each of its partitions, against a model: it does not depend on the others in the answer."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import (
    CORRUPT_MESSAGE,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_SERVER_ERROR,
)
from kzconsumer.brokers.protocol.log_reads import FetchedPartition, FetchPosition
from kzconsumer.clock import now
from kzconsumer.counters import Counters
from kzconsumer.fetcher.decode_and_queue import Arrival
from kzconsumer.fetcher.fetch_rules import ATTEMPTS, decoding
from kzconsumer.fetcher.fetch_state import REFUSALS_UNLOGGED, Answers, FetchState
from kzconsumer.fetcher.response_handler import FEWEST_BYTES, ResponseHandler
from kzconsumer.fetcher.throttle import RateLimit
from kzconsumer.model import Broker
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import progress
from tests.support.record_sets import Record, message, record_batch

OURS, OTHER = Broker(1, "ours", 9092), 2
AT = 5
"""Where all partitions are read, and where their logs ended so far."""
SETTINGS = FetchSettings()
RECORDS = record_batch([Record(None, b"v")], base_offset=AT)


class Sent(NamedTuple):
    """What an answer says of a partition, and what the next request is to ask of it."""

    error: int = NONE
    end: int = AT
    records: bytes = b""
    preferred: int = -1
    wanted: bool = False
    """It is asked for again at once, at the same position."""


SENT = {
    "no news": Sent(wanted=True),
    "no news of another session": Sent(wanted=True),
    "a first answer": Sent(wanted=True),
    "records": Sent(end=AT + 1, records=RECORDS),
    "records that were known of": Sent(end=AT + 1, records=RECORDS),
    "records beyond the end": Sent(end=AT + 1, records=RECORDS),
    "silence": Sent(end=AT + 4),
    "what a seek has overtaken": Sent(end=AT + 1, records=RECORDS, wanted=True),
    "what a revocation has overtaken": Sent(end=AT + 1, records=RECORDS),
    "what a move has overtaken": Sent(end=AT + 1, records=RECORDS),
    "what was overtaken, and is not asked for": Sent(end=AT + 1, records=RECORDS, wanted=True),
    "no leader": Sent(NOT_LEADER_OR_FOLLOWER),
    "a failure": Sent(UNKNOWN_SERVER_ERROR),
    "a failure that lasts": Sent(UNKNOWN_SERVER_ERROR),
    "a corrupt log": Sent(CORRUPT_MESSAGE),
    "the last failure": Sent(CORRUPT_MESSAGE),
    "out of range": Sent(OFFSET_OUT_OF_RANGE),
    "a follower that lacks it": Sent(OFFSET_OUT_OF_RANGE),
    "another replica": Sent(preferred=OTHER),
}
SOUGHT = (
    "no leader",
    "a failure",
    "a failure that lasts",
    "a corrupt log",
    "a follower that lacks it",
    "another replica",
)
"""Their leaders are looked up."""
GONE = ("what a revocation has overtaken", "what a move has overtaken")
DELIVERED = ("records", "records that were known of")


class Play:
    """A request for partitions, each in the state in which its part of the answer means what its name says."""

    def __init__(self, kinds: list[str]) -> None:
        self.sought: list[FetchState] = []
        self.handler = ResponseHandler(
            OURS, cast(Brokers, None), SETTINGS, decoding(SETTINGS.largest_body), RateLimit(None),
            self.sought.extend, Counters(), lambda: None,
        )  # fmt: skip
        self.answers = Answers(1.0)
        self.kinds = {self._state(number, kind): kind for number, kind in enumerate(kinds)}
        for state in self.kinds:
            state.broker = OURS.id
            self.handler.states.add(state)
        self.look()
        self.asked = {
            state.topic_partition: FetchPosition(AT - 1 if "a seek" in kind else AT, SETTINGS.max_bytes, 0)
            for state, kind in self.kinds.items()
            if "not asked for" not in kind
        }
        for state, kind in self.kinds.items():
            if "a revocation" in kind:
                state.progress.close()
            if "a move" in kind:
                self.handler.forget([state])

    def _state(self, number: int, kind: str) -> FetchState:
        state = FetchState(progress(number, AT), ChunkQueue(1 << 20), AT, SETTINGS.max_bytes)
        if kind not in ("a first answer", "records beyond the end"):
            end = AT + 1 if kind == "records that were known of" else AT
            state.saw_end(end, 1.0, Answers(1.0) if "another session" in kind else self.answers)
        if kind == "records beyond the end":
            state.stop = AT
        if kind == "the last failure":
            state.failures = ATTEMPTS - 1
        if kind == "a failure that lasts":
            state.refusals = REFUSALS_UNLOGGED
        if kind == "a follower that lacks it":
            state.prefer(OURS.id, now() + 60)
        return state

    def look(self) -> None:
        assert not self.handler.states.look(now(), self.handler.wanted, 1 << 20, ())

    def part(self, state: FetchState) -> FetchedPartition:
        sent = SENT[self.kinds[state]]
        records = memoryview(sent.records)
        return FetchedPartition(
            state.topic_partition, sent.error, sent.end, sent.end, 0, (), records, preferred=sent.preferred
        )

    def of(self, *kinds: str) -> list[FetchState]:
        return [state for state, kind in self.kinds.items() if kind in kinds]


@example(kinds=["what was overtaken, and is not asked for"], chance=random.Random(0))
@given(kinds=st.lists(st.sampled_from(list(SENT)), min_size=1, max_size=7), chance=st.randoms(use_true_random=False))
def test_each_partition_gets_what_the_answer_has_of_it(kinds: list[str], chance: random.Random) -> None:
    play = Play(kinds)
    order = list(play.kinds)
    chance.shuffle(order)
    before = now()
    arrived = play.handler.take(
        play.asked, [play.part(each) for each in order], False, before, answers=play.answers, small=True
    )
    play.look()
    again = play.handler.states.request(opens=False).partitions

    most = SETTINGS.max_bytes
    assert arrived == [Arrival(each, play.part(each), AT, most) for each in order if play.kinds[each] in DELIVERED]
    assert {id(each) for each in play.sought} == {id(each) for each in play.of(*SOUGHT)}
    served = False  # there may have been no room for what was asked for behind
    for state, kind in play.kinds.items():
        sent = SENT[kind]
        served = served or (bool(sent.records) and state.topic_partition in play.asked)
        behind = kind == "silence" and not served
        there = state in play.handler.states
        assert there == (kind not in (*SOUGHT, "the last failure", *GONE))
        assert (state.topic_partition in again) == (sent.wanted or (kind == "silence" and not behind))
        assert (state.empty.behind, state in play.handler.silent) == (behind, behind)
        assert state.position == AT
        assert state.decoding == (kind in DELIVERED)
        assert state.queue.filled[1] == (len(RECORDS) if kind in DELIVERED else 0)
        seen = "overtaken" not in kind and not sent.error and sent.preferred < 0
        assert state.high_watermark == (sent.end if seen else AT)
        assert state.verified
        assert state.answers is play.answers or "no news" not in kind
        assert state.reset_due == (kind == "out of range")
        assert (state in play.handler.states.unresolved(now())) == (kind == "out of range")
        assert state.failed == (kind == "the last failure")
        assert (state.retry_at >= before) == (kind in SOUGHT and kind != "another replica")
        assert state.preferred == (OTHER if kind == "another replica" else None)
    last = [each for each in order if play.kinds[each] in DELIVERED]
    assert list(play.handler.states) == [*(each for each in play.handler.states if each not in last), *last]


def test_the_error_of_a_log_that_its_broker_cannot_read_says_where_and_why() -> None:
    play = Play(["the last failure"])
    (state,) = play.kinds
    play.handler.take(play.asked, [play.part(state)], False, now(), small=True)
    chunk = state.queue.get_nowait()
    assert chunk is not None
    assert str(chunk.error).startswith(
        "corrupt batch in orders-0 at offset 5: the broker cannot read its log there (CORRUPT_MESSAGE)"
    )


@pytest.mark.parametrize("growth", [1.0, 1.5, 4.0, 1000.0])
def test_the_more_records_grow_in_decoding_the_less_is_asked_for(growth: float) -> None:
    play = Play(["no news"])
    (state,) = play.kinds
    state.expansion = growth
    wanted = play.handler.wanted(state, AT)
    assert wanted.max_bytes == max(int(SETTINGS.max_bytes / growth), FEWEST_BYTES)
    state.max_bytes, state.cut_short = 2 * state.max_bytes, True  # a batch needs that much
    assert play.handler.wanted(state, AT).max_bytes == state.max_bytes


@pytest.mark.parametrize("form", ["small", "large"])
@example(size=5, most=16, largest=4, growth=4.0, room=1000)
@example(size=5, most=16, largest=16, growth=1000.0, room=1000)
@given(
    size=st.sampled_from((1, 2, 4, 5, 16, 17)),
    most=st.sampled_from((1, 4, 16)),
    largest=st.sampled_from((1, 4, 16)),
    growth=st.sampled_from((1.0, 4.0, 1000.0)),
    room=st.sampled_from((1, 1000)),
)
def test_a_batch_that_is_cut_short_is_fetched_whole_if_it_may_be(
    form: str, size: int, most: int, largest: int, growth: float, room: int
) -> None:
    """As by brokers before 0.10.1. Less than `max_bytes` may have been asked for at first. Sizes are of 64 KiB."""
    settings = FetchSettings(max_bytes=most * FEWEST_BYTES, largest_batch=largest * FEWEST_BYTES)
    log = message(1, AT, 5, None, bytes(size * FEWEST_BYTES - 100))
    handler = ResponseHandler(
        OURS, cast(Brokers, None), settings, decoding(settings.largest_body), RateLimit(None), lambda states: None,
        Counters(), lambda: None,
    )  # fmt: skip
    handler.throttle.limit(room * FEWEST_BYTES)
    state = FetchState(progress(0, AT), ChunkQueue(1 << 30), AT, settings.max_bytes, expansion=growth)
    handler.states.add(state)
    requests = 0
    while state.position == AT and not state.failed:
        requests += 1
        assert requests < 7
        wanted = handler.wanted(state, AT)
        part = FetchedPartition(state.topic_partition, 0, AT + 1, -1, -1, (), memoryview(log)[: wanted.max_bytes])
        arrived = handler.take({state.topic_partition: wanted}, [part], False, now(), small=form == "small")
        asyncio.run(handler.deliver(arrived))
    assert state.failed == (size > max(most, largest))
