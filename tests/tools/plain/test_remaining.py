"""What remains of ranges: exactly the offsets that are wanted and missing, in as few ranges as possible."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.model import OffsetRange
from kzconsumer_tools.replay import remaining

RANGES = st.builds(
    lambda partition, first, size: OffsetRange("t", partition, first, first + size),
    st.integers(0, 1),
    st.integers(0, 12),
    st.integers(1, 5),
)


def offsets(ranges: list[OffsetRange]) -> set[tuple[int, int]]:
    return {(each.partition, offset) for each in ranges for offset in range(each.first, each.until)}


@given(st.lists(RANGES, max_size=2, unique_by=lambda each: each.partition), st.lists(RANGES, max_size=6))
def test_wanted_and_missing_offsets_remain_exactly_once(wanted: list[OffsetRange], there: list[OffsetRange]) -> None:
    left = remaining(wanted, there)
    assert offsets(left) == offsets(wanted) - offsets(there)
    assert left == sorted(left)
    assert all(each.first < each.until for each in left)
    assert all(a.until < b.first for a, b in pairwise(left) if a.partition == b.partition)
    assert remaining(left, there) == left
    assert remaining(wanted, [*there, *left]) == []
