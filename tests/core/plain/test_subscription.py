"""Which topics a registration subscribes to, with white and black lists as the original interprets them."""

from __future__ import annotations

import pytest

from kzconsumer.registry.group_records import STATIC, Registration, has_wildcard, streams_by_topic
from kzconsumer.settings.values import BLACK_LIST, WHITE_LIST, normalised

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
