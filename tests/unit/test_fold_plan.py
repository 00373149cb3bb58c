"""Which ranges become one item of a ledger follows from the ranges alone."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from kzconsumer_spark.fold_plan import Item, Span, foldable, height, redundant

LINE = "t+0+1.0"
BITS = 1


def ranges(*ends: int) -> list[Item]:
    return [Item(Span(first, until), 0) for first, until in pairwise(ends)]


def closing(level: int = 0, after: int = 0) -> int:
    """The next offset at which an item above `level` ends."""
    return next(n for n in range(after + 1, after + 10_000) if height(LINE, n, BITS) > level)


def open_end(after: int = 0) -> int:
    return next(n for n in range(after + 1, after + 10_000) if height(LINE, n, BITS) == 0)


def spans(groups: list[list[Item]]) -> list[Span]:
    return [Span(group[0].span.first, group[-1].span.until) for group in groups]


def fold(items: list[Item]) -> list[Item]:
    """All levels, as the ledger does."""
    items = list(items)
    level = 0
    while True:
        made = [Item(span, level + 1) for span in spans(list(foldable(LINE, items, level, BITS)))]
        items = list({*items, *made}.difference(redundant([*items, *made])))
        level += 1
        if not any(each.level >= level for each in items):
            return sorted(items)


def test_the_newest_range_stays_and_what_ends_no_group() -> None:
    end = closing()
    assert list(foldable(LINE, ranges(0, end), 0, BITS)) == []
    assert spans(list(foldable(LINE, ranges(0, end, end + 1), 0, BITS))) == [Span(0, end)]
    inner = open_end()
    assert list(foldable(LINE, ranges(0, inner, inner + 1), 0, BITS)) == []


def test_a_gap_is_never_bridged() -> None:
    first = open_end()
    end = closing(after=first + 1)
    items = [Item(Span(0, first), 0), Item(Span(first + 1, end), 0), Item(Span(end, end + 1), 0)]
    assert spans(list(foldable(LINE, items, 0, BITS))) == [Span(first + 1, end)]


def test_what_cannot_be_folded_yet_holds_up_its_own_group_only() -> None:
    first = open_end()
    end = closing(after=first)
    second = closing(after=end)
    items = ranges(0, first, end, second, second + 1)
    items[0] = items[0]._replace(is_fixed=True)
    assert spans(list(foldable(LINE, items, 0, BITS))) == [Span(end, second)]


def test_of_what_overlaps_each_is_in_one_item_at_most() -> None:
    chance = random.Random(1)
    for _ in range(300):
        items = {Item(Span(first := chance.randrange(60), first + chance.randint(1, 20)), 0) for _ in range(12)}
        groups = list(foldable(LINE, sorted(items), 0, BITS))
        used = [each for group in groups for each in group]
        assert len(used) == len(set(used))
        for group in groups:
            assert all(one.span.until == other.span.first for one, other in pairwise(group))


@pytest.mark.parametrize("seed", range(50))
def test_whoever_folds_when_makes_the_same_items(seed: int) -> None:
    """One that folds as ranges come, and one that comes late, with what an earlier look has left."""
    chance = random.Random(seed)
    ends = sorted(chance.sample(range(2000), 80))
    everything = ranges(*ends)
    at_once = fold(everything)
    items: list[Item] = []
    for each in everything:
        items.append(each)
        if chance.random() < 0.3:
            items = fold(items)
    assert fold(items) == at_once
    late = fold(everything[: chance.randrange(80)])
    assert [each for each in fold([*late, *at_once]) if each.level] == [each for each in at_once if each.level]
    covered = sorted(each.span for each in at_once)
    assert [span.first for span in covered[1:]] == [span.until for span in covered[:-1]]


def test_items_are_few_whatever_the_age() -> None:
    counts = [len(fold(ranges(*range(0, count * 7, 7)))) for count in (200, 2000, 20_000)]
    assert max(counts) < 100
