"""Which ranges become one item of a ledger depends on the ranges alone."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from kzconsumer_files.fold_plan import Item, Span, enclosed, foldable, height, is_within, runs

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
    newest = max(each.span.first for each in items)
    level = 0
    while True:
        made = [Item(span, level + 1) for span in spans(list(foldable(LINE, items, level, newest, BITS)))]
        items = list({*items, *made}.difference(each for each, _ in enclosed([*items, *made])))
        level += 1
        if not any(each.level >= level for each in items):
            return sorted(items)


def test_the_newest_range_and_ranges_that_end_no_group_are_kept() -> None:
    end = closing()
    assert list(foldable(LINE, ranges(0, end), 0, 0, BITS)) == []
    assert list(foldable(LINE, ranges(0, end, end + 1), 0, 0, BITS)) == [], (
        "it was published while the items were listed"
    )
    assert spans(list(foldable(LINE, ranges(0, end, end + 1), 0, end, BITS))) == [Span(0, end)]
    inner = open_end()
    assert list(foldable(LINE, ranges(0, inner, inner + 1), 0, inner, BITS)) == []


def test_a_gap_is_bridged_once_a_range_after_the_group_is_published() -> None:
    first = open_end()
    end = closing(after=first + 1)
    items = [Item(Span(0, first), 0), Item(Span(first + 1, end), 0)]
    assert list(foldable(LINE, items, 0, first + 1, BITS)) == []
    items.append(Item(Span(end + 5, end + 6), 0))
    assert spans(list(foldable(LINE, items, 0, end + 5, BITS))) == [Span(0, end)]


def test_ranges_in_a_gap_of_an_item_are_in_no_group() -> None:
    end = closing(level=1)
    late = Item(Span(1, 2), 0)
    items = [Item(Span(0, end), 1), late, Item(Span(end, end + 1), 0)]
    assert list(enclosed(items)) == [(late, [items[0]])]
    assert list(foldable(LINE, items, 0, end, BITS)) == []
    assert spans(list(foldable(LINE, items, 1, end, BITS))) == [Span(0, end)]


def test_runs_are_separated_by_gaps() -> None:
    of = runs(Span(0, 10), [Span(2, 3), Span(5, 9)])
    assert of == [Span(0, 2), Span(3, 5), Span(9, 10)]
    assert is_within([Span(0, 2), Span(4, 5)], of)
    assert not any(is_within([span], of) for span in (Span(2, 3), Span(1, 4), Span(0, 10), Span(9, 11), Span(6, 7)))


@pytest.mark.parametrize("seed", range(20))
def test_spans_are_within_others_if_each_of_their_offsets_is_in_one(seed: int) -> None:
    chance = random.Random(seed)
    results = set()
    for _ in range(100):
        ends = sorted(chance.sample(range(30), 2 * chance.randint(0, 4)))
        of = [Span(first, until) for first, until in zip(ends[::2], ends[1::2], strict=True)]
        made = [Span(first := chance.randrange(30), first + chance.randint(1, 4)) for _ in range(chance.randint(0, 3))]
        wanted = all(any(one.first <= each.first and each.until <= one.until for one in of) for each in made)
        assert is_within(made, of) is wanted, (made, of)
        results.add((wanted, len(made) > 1))
    assert len(results) == 4


def test_a_range_that_cannot_be_folded_yet_delays_only_its_group() -> None:
    first = open_end()
    end = closing(after=first)
    second = closing(after=end)
    items = ranges(0, first, end, second, second + 1)
    items[0] = items[0]._replace(is_fixed=True)
    assert spans(list(foldable(LINE, items, 0, second, BITS))) == [Span(end, second)]


def test_overlapping_ranges_are_each_in_at_most_one_item() -> None:
    chance = random.Random(1)
    for _ in range(300):
        items = {Item(Span(first := chance.randrange(60), first + chance.randint(1, 20)), 0) for _ in range(12)}
        groups = list(foldable(LINE, sorted(items), 0, 100, BITS))
        used = [each for group in groups for each in group]
        assert len(used) == len(set(used))
        for group in groups:
            assert all(one.span.until <= other.span.first for one, other in pairwise(group))


@pytest.mark.parametrize("seed", range(50))
def test_items_do_not_depend_on_who_folds_and_when(seed: int) -> None:
    """One process that folds as ranges arrive, and one that starts late with the result of an earlier pass."""
    chance = random.Random(seed)
    ends = sorted(chance.sample(range(2000), 80))
    everything = [each for each in ranges(*ends) if chance.random() < (0.6 if seed % 2 else 1)]
    at_once = fold(everything)
    items: list[Item] = []
    for each in everything:
        items.append(each)
        if chance.random() < 0.3:
            items = fold(items)
    assert fold(items) == at_once
    late = fold(everything[: chance.randrange(1, len(everything))])
    assert [each for each in fold([*late, *at_once]) if each.level] == [each for each in at_once if each.level]
    covered = sorted(each.span for each in at_once)
    assert all(one.until <= other.first for one, other in pairwise(covered))
    assert all(sum(is_within([each.span], [span]) for span in covered) == 1 for each in everything)


@pytest.mark.parametrize("gap", [0, 1])
def test_items_are_few_whatever_the_age(gap: int) -> None:
    for count in (200, 2000, 20_000):
        assert len(fold([Item(Span(first, first + 7 - gap), 0) for first in range(0, count * 7, 7)])) < 100
