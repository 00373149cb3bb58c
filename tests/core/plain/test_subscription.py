"""Which topics a registration subscribes to, with white and black lists as the original interprets them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.registry.group_records import STATIC, Registration, has_wildcard, streams_by_topic
from kzconsumer.settings.value_readers import BLACK_LIST, WHITE_LIST, normalised, read_stop, show_stop

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ("my.topic-2", "orders", "orders-eu", "payments", "__consumer_offsets", "__transaction_state")


def registration(pattern: str, subscription: dict[str, int]) -> Registration:
    return Registration(pattern, subscription, ours=False)


def test_static() -> None:
    """Named topics count whether they exist or not, including internal ones."""
    named = {"orders": 2, "later": 1, "__consumer_offsets": 1}
    assert streams_by_topic(registration(STATIC, named), TOPICS) == named
    assert not has_wildcard(registration(STATIC, named))


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-eu"]),
        ("orders,payments", ["orders", "payments"]),
        (" 'orders, payments' ", ["orders", "payments"]),
        (r"my\.topic.*", ["my.topic-2"]),
        (".*", ["my.topic-2", "orders", "orders-eu", "payments"]),
        ("__.*", []),
        ("order", []),
    ],
)
def test_white_list(pattern: str, topics: list[str]) -> None:
    member = registration(WHITE_LIST, {pattern: 3})
    assert has_wildcard(member)
    assert streams_by_topic(member, TOPICS) == dict.fromkeys(topics, 3)


def test_black_list() -> None:
    member = registration(BLACK_LIST, {"orders.*": 2})
    assert has_wildcard(member)
    assert streams_by_topic(member, TOPICS) == {"my.topic-2": 2, "payments": 2}


def test_only_the_first_entry_of_a_list_counts() -> None:
    member = registration(WHITE_LIST, {"orders": 1, "payments": 5})
    assert streams_by_topic(member, TOPICS) == {"orders": 1}


def test_invalid_regular_expressions() -> None:
    with pytest.raises(ValueError, match="'order\\[' is not a regular expression"):
        streams_by_topic(registration(WHITE_LIST, {"order[": 1}), TOPICS)


def test_a_filters_text() -> None:
    """`TopicFilter` of 1.1.1: trim, commas to bars, no blanks, no quotes around it."""
    assert normalised("  \"'a , b|c'\"  ") == "a|b|c"
    assert normalised("a'b") == "a'b"


TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@given(TIMES)
def test_a_run_ends_at_the_first_record_that_is_not_before_the_time(time: datetime) -> None:
    """Records have whole milliseconds."""
    stop = read_stop(time.isoformat())
    assert stop == read_stop(time) == read_stop(time.astimezone(timezone(timedelta(hours=-7))).isoformat())
    assert EPOCH + timedelta(milliseconds=stop) >= time > EPOCH + timedelta(milliseconds=stop - 1)
    assert read_stop(show_stop(stop)) == stop


def test_the_end_of_the_log_is_shown_as_it_is_read() -> None:
    assert (read_stop("end"), show_stop(read_stop("end"))) == (-1, "end")
    for wrong in ("END", "monday", "2026-01-31T12:00:00", "1969-12-31T23:59:59.999Z"):
        with pytest.raises(ValueError, match=r"is neither|is a time of no time zone|is before 1970"):
            read_stop(wrong)
