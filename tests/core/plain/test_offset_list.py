"""The text by which a plan says which of its records are rejected."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.registry.claim_record import (
    LONGEST,
    ClaimRecord,
    decode_claim_record,
    encode_claim_record,
    offset_list,
    offsets_in,
    spans_of,
)
from tests.support.plans import plan_of

FIRST = 1 << 40


@given(st.sets(st.integers(0, 200)), st.sets(st.integers(0, 200)))
def test_a_list_has_exactly_the_offsets_that_it_was_made_of(one: set[int], other: set[int]) -> None:
    spans = spans_of((FIRST + each for each in one), spans_of(FIRST + each for each in other))
    assert {each - FIRST for first, until in spans for each in range(first, until)} == one | other
    assert all(a[1] < b[0] for a, b in pairwise(spans)), "in order and apart"
    if spans:
        assert offsets_in(offset_list(spans, FIRST), FIRST) == spans


def test_a_list_is_short_for_offsets_that_follow_each_other_and_has_a_limit() -> None:
    assert offset_list(spans_of([3, 17, 18, 19, 20], ()), 0) == "3 17-20"
    assert offset_list(((FIRST, FIRST + 500_000),), FIRST) == "0-499999"
    assert len(offset_list(spans_of(range(FIRST, FIRST + 1_000_000, 1000)), FIRST)) < LONGEST
    with pytest.raises(ValueError, match="50000 records, too many for one range"):
        offset_list(spans_of(range(0, 100_000, 2)), 0)


@pytest.mark.parametrize("text", ["", "x", "3 2", "3-1", "3 3", "3-5 6", "3,4", " 3", "-1", "3-", "٣"])
def test_a_text_that_is_no_list_is_refused(text: str) -> None:
    """The partition is not consumed then: which records belong to the range would be unknown."""
    with pytest.raises(ValueError, match="list of offsets"):
        offsets_in(text, 0)


def test_a_plan_with_rejected_records_and_one_of_an_earlier_version() -> None:
    plan = plan_of(10, 20, rejected="0 3-4")
    record = ClaimRecord(1, "range", "0x2a", plan=plan)
    assert decode_claim_record(encode_claim_record(record)).plan == plan
    assert plan.left_out == ((10, 11), (13, 15))
    assert b"rejected" not in encode_claim_record(ClaimRecord(1, "range", "0x2a", plan=plan_of(10, 20)))
    assert plan_of(10, 20).left_out == ()
    broken = encode_claim_record(record).replace(b"3-4", b"3-10")
    with pytest.raises(ValueError, match="without offset 20"):
        decode_claim_record(broken)
    assert msgspec.structs.replace(plan, rejected=msgspec.UNSET) == plan_of(10, 20)
