"""The judge of the interop runs, in histories written by hand: what is a broken promise, and what explains a repeat."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop import judge as judging
from tests.interop.evidence import Exit, Kind, Span
from tests.interop.history import BROKER, End
from tests.interop.judge import RESPONSE, Verdict
from tests.interop.repeats import HAND_OVER, READ_BEFORE, RELEASE
from tests.support.interop_story import Story, continues, handed_over


@pytest.mark.parametrize("first", Kind)
@pytest.mark.parametrize("second", Kind)
def test_an_orderly_hand_over(first: Kind, second: Kind) -> None:
    story = Story()
    _, other, owned = handed_over(story, first, second)
    story.ends(owned, End.RELEASED, 4.0)
    continues(story, other, 10)
    verdict = story.judged()
    assert verdict.violations == []
    assert not verdict.repeats


def kinds_of(verdict: Verdict) -> set[str]:
    return {violation.kind for violation in verdict.violations}


def ends_by_itself(story: Story) -> None:
    story.member("one", Kind.OURS).exit = Exit.BY_ITSELF


def does_not_stop(story: Story) -> None:
    one = story.member("one", Kind.OURS)
    one.stopping, one.ended, one.exit, one.status = 1.0, 31.0, Exit.KILLED, -9


def delivers_before_it_owns(story: Story) -> None:
    one = story.member("one", Kind.ORIGINAL)
    story.delivers(one, 0, 5, 1.0)
    story.owns(one, 2.0)


def delivers_after_its_release(story: Story) -> None:
    one, _, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.ends(owned, End.RELEASED, 4.0)
    story.delivers(one, 10, 11, 4.5)


def delivers_after_its_stop(story: Story) -> None:
    one, _, owned = handed_over(story, Kind.OURS, Kind.OURS)
    one.exit, one.stopping = Exit.STOPPED, 3.5
    story.ends(owned, End.CLOSED, 4.0)
    story.delivers(one, 10, 11, 4.5)


def delivers_on_without_a_session(story: Story) -> None:
    one, _, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.ends(owned, End.EXPIRED, 4.0)
    story.delivers(one, 10, 10 + judging.IN_HAND + 1, 4.5)


def does_not_notice_that_its_node_is_gone(story: Story) -> None:
    one, other, owned = handed_over(story, Kind.OURS, Kind.ORIGINAL)
    story.ends(owned, End.TAKEN, 4.0, by=other.consumer)
    story.delivers(one, 10, 11, 4.0 + judging.NOTICE + 0.1)


def delivers_more_than_a_response_after_its_release(story: Story) -> None:
    one, _, owned = handed_over(story, Kind.ORIGINAL, Kind.OURS)
    story.ends(owned, End.RELEASED, 4.0)
    story.delivers(one, 10, 11 + judging.RESPONSE, 4.1)


def begins_elsewhere(story: Story) -> None:
    _, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.ends(owned, End.RELEASED, 4.0)
    continues(story, other, 12)


def skips(story: Story) -> None:
    one = story.member("one", Kind.OURS)
    story.owns(one, 1.0)
    story.delivers(one, 0, 5, 2.0)
    story.delivers(one, 6, 9, 3.0)


def goes_back(story: Story) -> None:
    one = story.member("one", Kind.OURS)
    story.owns(one, 1.0)
    story.delivers(one, 0, 5, 2.0)
    story.delivers(one, 4, 9, 3.0)


def stores_without_owning(story: Story) -> None:
    one, _, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.ends(owned, End.RELEASED, 4.0)
    story.stores(one, 10, 5.0)


def stores_ahead(story: Story) -> None:
    one, _, _ = handed_over(story, Kind.OURS, Kind.OURS)
    story.stores(one, 11, 3.5)


def stores_what_is_delivered_later(story: Story) -> None:
    one, _, _ = handed_over(story, Kind.OURS, Kind.OURS)
    story.stores(one, 15, 3.5)
    story.delivers(one, 10, 20, 4.0)


def stores_backwards(story: Story) -> None:
    one, _, _ = handed_over(story, Kind.OURS, Kind.OURS)
    story.stores(one, 9, 3.5)


def deletes_the_node_of_another(story: Story) -> None:
    _, other, owned = handed_over(story, Kind.ORIGINAL, Kind.OURS)
    story.ends(owned, End.TAKEN, 4.0, by=other.consumer)
    continues(story, other, 10)


def loses(story: Story) -> None:
    handed_over(story, Kind.ORIGINAL, Kind.OURS)
    story.sent = 12


def loses_what_another_kind_counted(story: Story) -> None:
    """Only an original counts a record before it is handed out."""
    one, other, owned = handed_over(story, Kind.OURS, Kind.ORIGINAL)
    story.stores(one, 11, 3.5)
    story.ends(owned, End.EXPIRED, 4.0)
    continues(story, other, 11)


def releases_without_a_commit(story: Story) -> None:
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    story.ends(owned, End.RELEASED, 4.0)
    continues(story, other, 10)


def stops_without_a_commit(story: Story) -> None:
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    one.exit, one.stopping = Exit.STOPPED, 3.8
    story.ends(owned, End.CLOSED, 4.0)
    continues(story, other, 10)


def does_not_commit_periodically(story: Story) -> None:
    """A crash explains what was delivered shortly before it."""
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    story.delivers(one, 15, 16, 30.0)
    one.exit, one.ended = Exit.KILLED, 31.0
    story.ends(owned, End.EXPIRED, 37.0)
    continues(story, other, 10, 38.0)


def an_original_does_not_commit_at_all(story: Story) -> None:
    one, other, owned = handed_over(story, Kind.ORIGINAL, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    story.ends(owned, End.RELEASED, 3.6 + HAND_OVER)
    continues(story, other, 10)


def reads_an_offset_of_the_past(story: Story) -> None:
    _, other, owned = handed_over(story, Kind.OURS, Kind.ORIGINAL)
    story.ends(owned, End.RELEASED, 4.0)
    continues(story, other, 5, 3.1 + READ_BEFORE)


def reads_an_offset_that_was_stored_before_the_last_one(story: Story) -> None:
    one, other, owned = handed_over(story, Kind.OURS, Kind.ORIGINAL)
    story.delivers(one, 10, 12, 9.0)
    story.stores(one, 12, 10.0)
    story.ends(owned, End.RELEASED, 10.5)
    continues(story, other, 5, 10.6)


def is_suspended_during_a_release_and_forgets_more_than_one_record(story: Story) -> None:
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 15, 3.5)
    one.suspended = [Span(3.6, 5.0)]
    story.ends(owned, End.RELEASED, 6.0)
    continues(story, other, 10)


def is_suspended_long_before_a_release(story: Story) -> None:
    one, other, owned = handed_over(story, Kind.OURS, Kind.OURS)
    story.delivers(one, 10, 11, 3.5)
    one.suspended = [Span(3.6, 5.0)]
    story.ends(owned, End.RELEASED, 5.1 + RELEASE)
    continues(story, other, 10, 20.0)


def ours_moves_the_offset_back_after_its_release(story: Story) -> None:
    one, other, owned = handed_over(story, Kind.OURS, Kind.ORIGINAL)
    story.ends(owned, End.RELEASED, 4.0)
    story.stores(one, 5, 5.0)
    continues(story, other, 5)


BROKEN: dict[Callable[[Story], None], set[str]] = {
    ends_by_itself: {"member ended"},
    does_not_stop: {"member ended"},
    delivers_before_it_owns: {"not owned"},
    delivers_after_its_release: {"not owned"},
    delivers_after_its_stop: {"not owned"},
    delivers_on_without_a_session: {"not owned"},
    does_not_notice_that_its_node_is_gone: {"not owned"},
    delivers_more_than_a_response_after_its_release: {"not owned"},
    begins_elsewhere: {"began elsewhere", "lost"},
    skips: {"skipped", "lost"},
    goes_back: {"went back", "repeated"},
    stores_without_owning: {"stored unowned"},
    stores_ahead: {"stored ahead"},
    stores_what_is_delivered_later: {"stored ahead"},
    stores_backwards: {"stored backwards"},
    deletes_the_node_of_another: {"not released"},
    loses: {"lost"},
    loses_what_another_kind_counted: {"stored ahead", "lost"},
    releases_without_a_commit: {"repeated"},
    stops_without_a_commit: {"repeated"},
    does_not_commit_periodically: {"repeated"},
    an_original_does_not_commit_at_all: {"repeated"},
    reads_an_offset_of_the_past: {"repeated"},
    reads_an_offset_that_was_stored_before_the_last_one: {"repeated"},
    is_suspended_during_a_release_and_forgets_more_than_one_record: {"repeated"},
    is_suspended_long_before_a_release: {"repeated"},
    ours_moves_the_offset_back_after_its_release: {"stored unowned", "repeated"},
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda each: each.__name__)
def test_a_broken_promise(broken: Callable[[Story], None]) -> None:
    story = Story()
    broken(story)
    assert kinds_of(story.judged()) == BROKEN[broken]


def test_a_member_that_is_started_again_has_the_same_id() -> None:
    """What is delivered and owned belongs to the process of that time."""
    story = Story()
    first, _, owned = handed_over(story, Kind.OURS, Kind.OURS)
    first.exit, first.ended = Exit.KILLED, 4.0
    story.ends(owned, End.EXPIRED, 10.0)
    second = story.member("again", Kind.OURS, began=5.0)
    second.consumer = first.consumer
    continues(story, second, 10)
    verdict = story.judged()
    assert verdict.violations == []


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
