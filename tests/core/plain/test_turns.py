"""Whose turn it is: the bounds of start-time fair queueing, whatever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.streams.chunk_queue import Turns
from tests.support.reachable import reachable
from tests.support.schedules import schedules

SIZES = st.integers(1, 100)
MOST = 100


def served(turns: Turns[str], sizes: dict[str, int], times: int) -> list[str]:
    """Whose turns these were, if all of them always have something."""
    order = []
    for _ in range(times):
        one = turns.next()
        assert one is not None
        order.append(one)
        turns.took(one, sizes[one], more=True)
    return order


def test_nobody_has_a_turn_who_has_nothing() -> None:
    turns = Turns[str]()
    assert turns.next() is None
    turns.come("a")
    turns.come("b")
    turns.leave("a")
    assert turns.next() == "b"
    turns.took("b", 1, more=False)
    assert turns.next() is None


@given(st.dictionaries(st.sampled_from("abcdef"), SIZES, min_size=2))
def test_turns_are_shared_by_bytes(sizes: dict[str, int]) -> None:
    turns = Turns[str]()
    for one in sizes:
        turns.come(one)
    order = served(turns, sizes, 1000)
    had = {one: order.count(one) * size for one, size in sizes.items()}
    assert max(had.values()) - min(had.values()) <= MOST


@given(schedules(st.tuples(st.sampled_from("abcd"), SIZES, st.booleans(), st.booleans()), 100))
def test_nobody_waits_for_more_than_one_turn_of_each_other(events: list[tuple[str, int, bool, bool]]) -> None:
    """Those that come and go, at every turn, get no more by it than by staying; and the marks are bounded."""
    turns = Turns[str]()
    turns.come("z")
    turns.took("z", 1, more=True)
    since = dict.fromkeys("abcd", 0)
    for one, size, more, leaves in events:
        turns.come(one)
        turn = turns.next()
        assert turn is not None
        if turn == "z":
            since = dict.fromkeys("abcd", 0)
            turns.took("z", MOST, more=True)
            continue
        since[turn] += size
        assert since[turn] <= 2 * MOST + size, f"{turn} had {since[turn]} bytes while another waited"
        turns.took(turn, size, more=more)
        if leaves:
            turns.leave(one)


def test_who_had_nothing_for_long_has_saved_up_nothing() -> None:
    turns = Turns[str]()
    turns.come("busy")
    served(turns, {"busy": 10}, 1000)
    turns.come("late")
    assert served(turns, {"busy": 10, "late": 10}, 6).count("late") == 3


def test_who_comes_back_at_once_has_escaped_nothing() -> None:
    """It has one chunk at a time, and a new one as soon as that is taken."""
    turns = Turns[str]()
    turns.come("waiting")
    turns.took("waiting", 50, more=True)
    order = []
    for _ in range(8):
        turns.come("back")
        one = turns.next()
        assert one is not None
        order.append(one)
        turns.took(one, 50, more=one == "waiting")
    assert order.count("waiting") == 4


def test_marks_of_those_that_went_are_forgotten() -> None:
    turns = Turns[int]()
    for staying in (False, True):
        if staying:
            turns.come(-1)
        for number in range(3000):
            turns.come(number)
            if (one := turns.next()) is not None:
                turns.took(one, 10, more=one == -1)
        assert len(reachable(turns)) < (7000 if staying else 100)
