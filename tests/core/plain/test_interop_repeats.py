"""What is no fault of a member, in histories written by hand: repeats and losses that a crash explains, or a known
weakness of the original or of kafka-node.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.evidence import Exit, Kind, Span
from tests.interop.history import BROKER, End
from tests.interop.judge import RESPONSE
from tests.support.interop_story import Story, continues, handed_over


def a_kill(story: Story) -> str:
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    one.exit, one.ended = Exit.KILLED, 4.0
    story.ends(owned, End.EXPIRED, 10.0)
    continues(story, other, 10)
    return "ours: killed"


def a_suspension(story: Story) -> str:
    """It is in the middle of a lot of messages, all of which the application gets at once."""
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    one.suspended = [Span(3.6, 30.0)]
    story.ends(owned, End.EXPIRED, 10.0)
    continues(story, other, 10)
    return "ours: session lost"


def a_suspension_during_a_release(story: Story) -> str:
    """The application had a record in hand."""
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 11, 3.5)
    one.suspended = [Span(3.6, 5.0)]
    story.ends(owned, End.RELEASED, 6.0)
    continues(story, other, 10)
    return "ours: suspended during the release"


def a_lost_session(story: Story) -> str:
    """Nothing in the run explains it, so it is reported apart."""
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    story.ends(owned, End.EXPIRED, 10.0)
    continues(story, other, 10)
    return "ours: session lost without a fault"


def a_stop_without_zookeeper(story: Story) -> str:
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    one.exit, one.stopping = Exit.STOPPED, 3.8
    story.disturbed = [Span(3.0, 9.0)]
    story.ends(owned, End.CLOSED, 10.0)
    continues(story, other, 10)
    return "ours: stopped without ZooKeeper"


def a_chunk_in_hand(story: Story) -> str:
    one, other, owned = handed_over(story, Kind.ORIGINAL, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    story.ends(owned, End.RELEASED, 4.0)
    continues(story, other, 10)
    return "original: not committed at the hand-over"


def an_original_zombie(story: Story) -> str:
    """It delivers what its successor has delivered."""
    one, other, owned = handed_over(story, Kind.ORIGINAL, Kind.OURS)
    story.ends(owned, End.EXPIRED, 10.0)
    continues(story, other, 10)
    story.delivers(one, 10, 20, 30.0)
    return "original: in flight when its ownership ended"


def an_original_zombie_with_more_than_a_response(story: Story) -> str:
    """It does not notice that its session is lost until it rebalances."""
    one, other, owned = handed_over(story, Kind.ORIGINAL, Kind.OURS)
    story.ends(owned, End.EXPIRED, 10.0)
    story.owns(other, 20.0)
    story.delivers(other, 10, 12 + RESPONSE, 21.0)
    story.delivers(one, 10, 12 + RESPONSE, 30.0)
    return "original: in flight when its ownership ended"


def an_original_that_stores_late(story: Story) -> str:
    _, other, owned = handed_over(story, Kind.OURS, Kind.ORIGINAL)
    third = story.member("third", Kind.OURS)
    story.ends(owned, End.RELEASED, 4.0)
    story.stores(other, 5, 5.0)
    continues(story, third, 5)
    return "original: moved the stored offset back"


def kafka_node_that_stores_late(story: Story) -> str:
    _, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.ends(owned, End.RELEASED, 4.0)
    story.stores(BROKER, 5, 5.0)
    continues(story, other, 5)
    return "kafka-node: moved the stored offset back"


def an_original_that_read_before_its_claim(story: Story) -> str:
    _, other, owned = handed_over(story, Kind.OURS, Kind.ORIGINAL)
    story.ends(owned, End.RELEASED, 3.1)
    continues(story, other, 5, 3.2)
    return "original: read the offset before its claim"


def kafka_node_that_gets_an_earlier_answer(story: Story) -> str:
    one, _, owned = handed_over(story, Kind.KAFKA_NODE, Kind.OURS)
    story.ends(owned, End.RELEASED, 4.0)
    story.owns(one, 5.0)
    story.delivers(one, 10, 20, 6.0)
    story.delivers(one, 5, 20, 7.0)
    return "kafka-node: answer to an earlier request"


def kafka_node_that_commits_after_its_release(story: Story) -> str:
    one, other, owned = handed_over(story, Kind.KAFKA_NODE, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    story.ends(owned, End.RELEASED, 4.0)
    story.owns(other, 4.1)
    story.delivers(other, 10, 20, 4.2)
    story.stores(BROKER, 15, 4.5)
    return "kafka-node: not committed at the hand-over"


def kafka_node_that_claims_again_what_it_has_not_committed(story: Story) -> str:
    _, other, owned = handed_over(story, Kind.OURS, Kind.KAFKA_NODE)
    story.ends(owned, End.RELEASED, 4.0)
    owned = story.owns(other, 5.0)
    story.delivers(other, 10, 11, 5.1)
    story.stores(BROKER, 10, 5.2)
    story.ends(owned, End.RELEASED, 5.3)
    continues(story, other, 10, 5.4)
    return "kafka-node: not committed at the hand-over"


@pytest.mark.parametrize(
    "happens",
    [
        a_kill,
        a_suspension,
        a_suspension_during_a_release,
        a_lost_session,
        a_stop_without_zookeeper,
        a_chunk_in_hand,
        an_original_zombie,
        an_original_zombie_with_more_than_a_response,
        an_original_that_stores_late,
        kafka_node_that_stores_late,
        an_original_that_read_before_its_claim,
        kafka_node_that_gets_an_earlier_answer,
        kafka_node_that_commits_after_its_release,
        kafka_node_that_claims_again_what_it_has_not_committed,
    ],
)
def test_a_repeat_that_is_explained(happens: Callable[[Story], str]) -> None:
    story = Story()
    why = happens(story)
    verdict = story.judged()
    assert verdict.violations == []
    assert set(verdict.repeats) == {why}


def test_an_original_counts_a_record_before_it_is_handed_out() -> None:
    story = Story()
    one, other, owned = handed_over(story, Kind.ORIGINAL, Kind.OURS)
    story.stores(one, 11, 3.5)
    one.exit, one.ended = Exit.KILLED, 4.0
    story.ends(owned, End.EXPIRED, 10.0)
    continues(story, other, 11)
    verdict = story.judged()
    assert verdict.violations == []
    assert verdict.lost_by_original == 1
