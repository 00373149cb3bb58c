"""Repeated lines: the first is logged at once, then one per interval, with an exact count of those left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.logs.repeats import INTERVAL, MOST, Repeats, same
from tests.support.reachable import reachable


def test_the_first_line_at_once_then_the_last_of_each_interval() -> None:
    repeats: Repeats[str] = Repeats()
    assert repeats.admit("key", "line 0", 0.0)
    assert [repeats.admit("key", f"line {n}", float(n)) for n in (1, 2, 3)] == [False] * 3
    assert repeats.overdue(INTERVAL - 0.1) == []
    assert repeats.overdue(INTERVAL) == [("line 3", 2)]
    assert not repeats.admit("key", "line 4", INTERVAL + 1), "still the same interval"
    assert repeats.overdue(2 * INTERVAL) == [("line 4", 0)]
    assert repeats.overdue(3 * INTERVAL) == []
    assert repeats.admit("key", "line 5", 3 * INTERVAL + 1), "it was over"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), max_size=60))
def test_every_line_is_reported_or_counted(lines: list[tuple[str, float]]) -> None:
    repeats: Repeats[str] = Repeats()
    now, output = 0.0, 0
    for key, pause in lines:
        now += pause
        output += sum(1 + left_out for _, left_out in repeats.overdue(now))
        output += repeats.admit(key, key, now)
    output += sum(1 + left_out for _, left_out in repeats.overdue(now, 0.0))
    assert output == len(lines)


def test_memory_is_bounded_and_no_count_is_lost() -> None:
    repeats: Repeats[int] = Repeats()
    output = 0
    for n in range(MOST + 50):
        output += sum(1 + left_out for _, left_out in repeats.overdue(0.0))
        output += repeats.admit(n, n, 0.0) + repeats.admit(n, n, 0.0)
    assert len(reachable(repeats)) < 3 * MOST
    output += sum(1 + left_out for _, left_out in repeats.overdue(0.0, 0.0))
    assert output == 2 * (MOST + 50)


def test_which_lines_are_repeats() -> None:
    line = {"event": "connection lost", "host": "zk1:2181", "partition": 3, "reason": "no probe answered for 2.1 s"}
    later = {**line, "reason": "no probe answered for 2.4 s", "timestamp": "12:00", "level": "warning"}
    assert same(line) == same(later)
    assert same(line) != same({**line, "partition": 4})
    assert same(line) != same({**line, "reason": "closed by the server"})
