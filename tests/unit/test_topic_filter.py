"""White and black lists: the original's normalisation and full-match rule, and what must not be written."""

from __future__ import annotations

import pytest

from kzconsumer.topic_filter import BLACK_LIST, WHITE_LIST, Blacklist, Whitelist


@pytest.mark.parametrize(
    ("text", "regex"),
    [
        ("orders", "orders"),
        (" orders , payments ", "orders|payments"),
        ('"orders.*"', "orders.*"),
        ("'a b'", "ab"),
        (r"my\.topic.*", r"my\.topic.*"),
    ],
)
def test_the_originals_normalisation(text: str, regex: str) -> None:
    assert Whitelist(text).regex == regex


def test_the_whole_name_has_to_match() -> None:
    topics = Whitelist("orders,pay.*")
    assert [name for name in ("orders", "orders2", "xorders", "payments") if topics.allows(name)] == [
        "orders",
        "payments",
    ]
    assert topics.pattern == WHITE_LIST


def test_a_black_list_allows_the_rest_but_nothing_internal() -> None:
    topics = Blacklist("test-.*")
    names = ("orders", "test-1", "__consumer_offsets", "__transaction_state", "__mine")
    assert [name for name in names if topics.allows(name)] == ["orders", "__mine"]
    assert topics.pattern == BLACK_LIST
    assert not Whitelist(".*").allows("__consumer_offsets")


def test_a_text_that_is_no_expression() -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        Whitelist("orders(")


@pytest.mark.parametrize("text", [r"\p{Lu}.*", r"\Qa.b\E", "[a-z&&[^b]]", "(?P<n>a)", "(?<n>a)"])
def test_what_java_reads_otherwise_is_not_written(text: str) -> None:
    try:
        topics = Whitelist(text)
    except ValueError:
        return
    with pytest.raises(ValueError, match="Java"):
        topics.portable()


@pytest.mark.parametrize("text", ["orders.*", "a|b", r"my\.topic-\d+", "(?:a|b)c?", "[^x]+", "a{1,3}b*"])
def test_what_both_read_alike_is(text: str) -> None:
    Whitelist(text).portable()


@pytest.mark.parametrize(
    "text", ["(" * 3000 + ")" * 3000, "a{99999999999999999}", "a{" + "9" * 5000 + "}", "a|" * 40_000]
)
def test_a_text_that_is_no_expression_anybody_would_write(text: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression") as refused:
        Whitelist(text)
    assert len(str(refused.value)) < 500
