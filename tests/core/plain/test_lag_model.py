"""The model of lag and health: unknown is never zero, and 0 is what was measured a moment ago."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.cli.main import whole_parser
from kzconsumer.lag.partition import (
    FRESH,
    SKEW,
    STALE,
    History,
    Measured,
    PartitionFacts,
    PartitionLag,
    Reason,
    Why,
    partition_lag,
    time_left,
)
from kzconsumer.lag.totals import KINDS, age_text, behind_text, examined, finding, lag_text, of_partitions, total
from kzconsumer.lag.write_times import MOST_LOOKS, LogGrowth
from tests.support.reachable import reachable

NOW, WALL = 1_000.0, 1_700_000_000.0
FACTS = PartitionFacts(topic="t", partition=0, position=5, start=Measured(0, NOW), end=Measured(20, NOW))
PAGE = (Path(__file__).parents[3] / "docs" / "troubleshooting.md").read_text()


def of(growth: LogGrowth | None = None, **fields: Any) -> PartitionLag:
    return partition_lag(msgspec.structs.replace(FACTS, **fields), NOW, WALL, growth)


def end(value: int, ago: float) -> Measured:
    return Measured(value, NOW - ago)


def ms(ago: float) -> int:
    return round((WALL - ago) * 1000)


def reason(why: Why | None) -> Reason | None:
    return why.reason if why is not None else None


def test_a_measured_lag() -> None:
    found = of(written=ms(7.0))
    assert (found.lag, found.at_least, found.why, found.behind, found.left) == (15, 15, None, True, 15)
    assert (found.seconds, found.why_seconds, found.lost) == (7.0, None, 0)


def test_nothing_left_is_known_only_while_the_reading_is_fresh() -> None:
    now = of(position=20, end=end(20, FRESH))
    assert (now.lag, now.seconds, now.behind) == (0, 0.0, False)
    old = of(position=20, end=end(20, FRESH + 0.1))
    assert (old.lag, old.at_least, old.seconds, old.behind) == (None, 0, None, None)
    assert old.why == old.why_seconds == Why("reading too old", NOW - FRESH - 0.1)


def test_a_lag_ages_and_is_then_a_lower_bound() -> None:
    aged = of(end=end(20, STALE), written=ms(90.0))
    assert (aged.lag, aged.age, aged.why) == (15, STALE, None)
    old = of(end=end(20, STALE + 1), written=ms(90.0), silent=Why("no leader", 7.0))
    assert (old.lag, old.at_least, old.behind) == (None, 15, True), "a log does not get shorter"
    assert old.why == Why("no leader", 7.0)
    assert (old.seconds, old.why_seconds) == (90.0, None), "the record waits, whatever came after it"


@pytest.mark.parametrize("why", ["never committed", "offset unreadable", "not permitted"])
def test_without_a_position(why: Reason) -> None:
    found = of(position=Why(why))
    assert (found.lag, found.at_least, found.seconds, found.behind, found.left) == (None, 0, None, None, None)
    assert reason(found.why) == reason(found.why_seconds) == why


def test_an_empty_log_has_no_lag_wherever_the_group_would_begin() -> None:
    empty: dict[str, Any] = {"start": Measured(3_008, NOW), "end": end(3_008, 0.0)}
    found = of(position=Why("never committed"), **empty)
    assert (found.lag, found.seconds, found.behind) == (0, 0.0, False)
    assert of(position=Why("offset unreadable"), **empty).lag is None
    after_retention = of(position=0, written=ms(8_516.0), **empty)
    assert (after_retention.lag, after_retention.seconds, after_retention.lost) == (0, 0.0, 3_008)


def test_lost_offsets_are_no_lag() -> None:
    found = of(position=5, start=Measured(12, NOW))
    assert (found.lag, found.lost) == (8, 7)


def test_an_offset_after_the_end_is_unknown() -> None:
    assert reason(of(position=21).why) == "offset after the log's end"
    late = of(position=21, end=end(20, FRESH + 1))
    assert reason(late.why) == "reading too old", "the log may have grown since"
    assert late.behind is None


def test_a_topic_that_is_gone_is_not_behind() -> None:
    found = of(silent=Why("topic gone"))
    assert (found.gone, found.lag, found.at_least, found.behind) == (True, None, 0, None)
    assert of(silent=Why("topic gone"), position=Why("offset unreadable")).gone


def test_what_was_lost_is_unknown_without_the_start_of_a_log() -> None:
    never = row(lag=None, at_least=0, lost=None, why=Why("never committed"))
    unread = row(lag=None, at_least=0, lost=None, why=Why("no leader"))
    lost = [total(rows).lost for rows in ([row(lost=0), never], [row(lost=0), unread], [row(lost=7), unread], [])]
    assert lost == [0, None, 7, 0]


def test_an_earlier_reading_is_a_lower_bound_where_its_age_is_not_shown() -> None:
    facts = PartitionFacts(topic="t", partition=0, position=5, end=end(20, 1.0), silent=Why("no leader"))
    assert partition_lag(facts, NOW, WALL).lag == 15
    found = partition_lag(facts, NOW, WALL, fresh_for=0.0, stale_after=0.0)
    assert (found.lag, found.at_least, found.behind, reason(found.why)) == (None, 15, True, "no leader")
    assert partition_lag(facts, NOW - 1.0, WALL, fresh_for=0.0, stale_after=0.0).lag == 15


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (None, "record not read"),
        (Why("no timestamps"), "no timestamps"),
        (Why("record not read"), "record not read"),
        (ms(-SKEW - 1), "timestamp in the future"),
    ],
)
def test_an_unknown_age_is_not_zero_and_growth_stands_in(written: int | Why | None, why: Reason) -> None:
    found = of(written=written)
    assert (found.lag, found.seconds, reason(found.why_seconds)) == (15, None, why)
    growth = LogGrowth()
    growth.saw(0, NOW - 30)
    growth.saw(20, NOW - 10)
    assert of(growth, written=written).seconds == 25.0
    assert of(growth, written=ms(3.0)).seconds == 3.0, "the record's own timestamp is better"


def test_a_clock_a_little_ahead_is_no_future() -> None:
    assert of(written=ms(-SKEW + 1)).seconds == 0.0


def test_a_bounded_run_has_nothing_left_at_its_end() -> None:
    running = of(until=10)
    assert (running.lag, running.left, running.behind) == (15, 5, True)
    done = of(position=10, until=10, end=end(20, STALE + 1))
    assert (done.lag, done.at_least, done.left, done.behind) == (None, 10, 0, False)
    assert of(position=10, until=10, end=None).behind is False


REASONS: tuple[Reason, ...] = ("no leader", "brokers unreachable", "broker error", "not permitted", "topic gone")
offsets = st.integers(0, 50)
readings = st.none() | st.builds(Measured, offsets, st.floats(NOW - 200, NOW))
whys = st.none() | st.builds(Why, st.sampled_from(REASONS))
positions: st.SearchStrategy[int | Why] = offsets | st.builds(Why, st.just("never committed"))
facts = st.builds(
    PartitionFacts,
    topic=st.just("t"),
    partition=st.integers(0, 3),
    position=positions,
    start=readings,
    end=readings,
    silent=whys,
    written=st.none() | st.integers(ms(1_000), ms(-1_000)),
    until=st.none() | offsets,
)


@given(st.lists(facts, max_size=6))
def test_unknown_is_never_zero(every: list[PartitionFacts]) -> None:
    rows = [partition_lag(each, NOW, WALL) for each in every]
    for read, row in zip(every, rows, strict=True):
        assert (row.lag is None) == (row.why is not None)
        assert (row.seconds is None) == (row.why_seconds is not None)
        if row.lag == 0 or (row.seconds == 0.0 and row.at_least == 0):
            assert read.end is not None
            assert NOW - read.end.at <= FRESH
        assert row.lag is None or row.lag == row.at_least
        assert row.behind is not True or (row.left or 0) > 0
    found = total(rows)
    unknown = sum(found.unknown.values())
    assert found.partitions + found.gone == len(rows)
    assert found.known <= found.at_least
    assert (found.lag is None) == (unknown > 0)
    assert sum(row.lag is not None for row in rows) + unknown == found.partitions
    assert (found.lag_seconds is None) == bool(found.unknown_seconds)
    if unknown:
        assert "unknown" in lag_text(found)


def row(**fields: Any) -> PartitionLag:
    return msgspec.structs.replace(of(written=ms(7.0)), **fields)


def test_sums_are_three_figures() -> None:
    leaderless = row(lag=None, at_least=4, why=Why("no leader"), seconds=90.0)
    never = row(lag=None, at_least=0, why=Why("never committed"), seconds=None, why_seconds=Why("never committed"))
    gone = row(lag=None, at_least=0, why=Why("topic gone"), seconds=None, why_seconds=Why("topic gone"))
    found = total([row(), row(), leaderless, leaderless, never, gone])
    assert (found.known, found.at_least, found.unknown) == (30, 38, {"no leader": 2, "never committed": 1})
    assert (found.lag, found.partitions, found.gone) == (None, 5, 1)
    assert (found.seconds, found.lag_seconds, found.unknown_seconds) == (90.0, None, {"never committed": 1})
    assert lag_text(found) == "at least 38 (3 unknown: 2 no leader, 1 never committed)"
    assert age_text(found) == "at least 1 min 30 s"


def test_the_words_of_a_sum() -> None:
    assert (lag_text(total([row()])), age_text(total([row()]))) == ("15", "7 s")
    assert lag_text(total([row(age=40.0)])) == "15, 40 s ago"
    never = row(lag=None, at_least=0, why=Why("not permitted"), seconds=None, why_seconds=Why("not permitted"))
    assert lag_text(total([never, never])) == "unknown (not permitted)"
    assert behind_text(total([never])) == "lag unknown (not permitted)"
    assert behind_text(total([row(), never])) == "at least 15 records behind (1 unknown: not permitted)"
    assert behind_text(total([row(age=40.0)])) == "15 records behind, 40 s ago"
    assert age_text(total([never])) == "unknown"
    caught_up = row(lag=0, at_least=0, seconds=0.0)
    assert age_text(total([caught_up, never])) == "unknown", "of the others nothing is known"
    assert (lag_text(total([])), age_text(total([]))) == ("0", "0 s")


def test_an_idle_log_has_grown_only_since_the_last_observation() -> None:
    growth = LogGrowth()
    for until, at in ((10, 0.0), (10, 50.0), (20, 60.0)):
        growth.saw(until, at)
    assert growth.reached(15) == 55
    assert growth.reached(10) == 50
    assert growth.reached(9) is None


def test_growth_reaches_back_and_is_bounded() -> None:
    growth = LogGrowth()
    for second in range(100_000):
        growth.saw(second * 10, float(second))
    assert len(reachable(growth)) < 4 * MOST_LOOKS
    for offset in (0, 12_345, 500_005, 999_985):
        assert growth.reached(offset) == pytest.approx(offset / 10, abs=1e-6)
    assert growth.reached(999_990) is None, "to come"
    growth.saw(5, 100_000.0)
    assert growth.reached(3) is None, "another log"


def test_standing_counts_from_the_last_moment_at_which_it_was_caught_up() -> None:
    history = History(7, 0.0)
    history.advance(7, False, 50.0)
    assert history.standing(None, 90.0) == history.standing(False, 90.0) == 0.0
    history.advance(7, None, 90.0)
    assert history.standing(True, 100.0) == 50.0, "unknown concludes nothing"
    history.advance(8, True, 100.0)
    assert history.standing(True, 104.0) == 4.0


def test_rates_need_two_readings() -> None:
    history = History(0, 0.0)
    history.look(0, Measured(100, 0.0), 0.0)
    assert (history.rate, history.log_rate) == (None, None)
    history.look(50, Measured(100, 0.0), 5.0)
    assert (history.rate, history.log_rate) == (10.0, None), "the end is the same reading"
    history.look(100, Measured(120, 10.0), 10.0)
    assert (history.rate, history.log_rate) == (10.0, 2.0)
    assert time_left(40, 10.0, 2.0) == 5.0
    assert (time_left(0, None, None), time_left(1, 2.0, 2.0), time_left(None, 2.0, 1.0)) == (0.0, None, None)


def test_health_has_three_values() -> None:
    found = of_partitions("no_leader", "orders", ["t-1", "t-2"], "stalled", "no leader")
    assert found.text == "2 partitions stalled: t-1, t-2 (no leader)"
    assert (found.command, found.see) == ("kzconsumer cluster describe", "troubleshooting.html#no-partition-leader")
    assert examined([]).health == "healthy"
    assert examined([found], ["broker 1 does not answer"]).health == "unhealthy"
    assert examined([], ["broker 1 does not answer"]).health == "not examined"
    assert finding("lag_unknown", "orders", "x").command == "kzconsumer lag orders"
    assert finding("lag_unknown", "my group", "x").command == "kzconsumer lag 'my group'"


@pytest.mark.parametrize("id", sorted(KINDS))
def test_every_finding_is_in_troubleshooting_and_names_a_command(id: str) -> None:
    kind = KINDS[id]  # type: ignore[index]  # of the parameters
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    assert kind.see in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    whole_parser().parse_args(kind.command.format(group="orders").split()[1:])
