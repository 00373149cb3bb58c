"""What proves a hole at the end of a log: two answers in a row without records, of which all is true that must be."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.brokers.protocol.log_reads import FetchedPartition
from kzconsumer.fetcher.reading import EmptyAnswers
from kzconsumer.model import TopicPartition
from kzconsumer.settings.sections import FetchSettings

EMPTY = FetchedPartition(TopicPartition("t", 0), 0, 9, 9, 0, (), memoryview(b""))


class Answer(NamedTuple):
    """`interrupted`: an error came before it."""

    first: int = 5
    until: int | None = 9
    end: int = 9
    throttled: bool = False
    preferred: int = -1
    interrupted: bool = False

    @property
    def may_prove(self) -> bool:
        return self.until is not None and self.end >= self.until and not self.throttled and self.preferred < 0


USUAL = Answer()
ANSWERS = st.lists(
    st.sampled_from(
        [
            *[USUAL] * 6,
            *(USUAL._replace(**each) for each in ({"first": 6}, {"until": None}, {"end": 8}, {"end": 4})),
            *(USUAL._replace(**each) for each in ({"throttled": True}, {"preferred": 2}, {"interrupted": True})),
        ]
    ),
    max_size=8,
)


@given(ANSWERS)
def test_only_two_answers_in_a_row_that_may_prove_a_hole_are_as_good_as_a_proof(answers: list[Answer]) -> None:
    empty = EmptyAnswers()
    before: Answer | None = None
    for time, each in enumerate(answers):
        if each.interrupted:
            empty.interrupt()
            before = None
        part = msgspec.structs.replace(EMPTY, preferred=each.preferred)
        empty.take(part, each.first, each.until, each.end, FetchSettings(), throttled=each.throttled, time=float(time))
        at_the_end = each.first >= each.end
        follows = before is not None and before.may_prove and (before.first, before.until) == (each.first, each.until)
        assert empty.asks_where == (each.may_prove and follows and not at_the_end)
        assert empty.behind == (not at_the_end)
        before = None if at_the_end else each
