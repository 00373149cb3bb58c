"""White and black lists: the original's normalisation and full-match rule, and expressions that are rejected."""

from __future__ import annotations

import time

import pytest

from kzconsumer.settings.value_readers import BLACK_LIST, MOST_CHARACTERS, WHITE_LIST, Exclude, Include


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
    assert Include(text).regex == regex


def test_the_whole_name_has_to_match() -> None:
    topics = Include("orders,pay.*")
    assert [name for name in ("orders", "orders2", "xorders", "payments") if topics.allows(name)] == [
        "orders",
        "payments",
    ]
    assert topics.pattern == WHITE_LIST


def test_a_black_list_allows_the_rest_but_nothing_internal() -> None:
    topics = Exclude("test-.*")
    names = ("orders", "test-1", "__consumer_offsets", "__transaction_state", "__share_group_state", "__mine")
    assert [name for name in names if topics.allows(name)] == ["orders", "__mine"]
    assert topics.pattern == BLACK_LIST
    assert not Include(".*").allows("__consumer_offsets")


def test_a_text_that_is_no_expression() -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        Include("orders(")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[a-z&&[^b]]",
            "(?P<n>a)",
            "(?<=a)b",
            "(a)?(?(1)b|c)",
            r"orders\Z",
            "[[a-c]x]",
            "[a[b]",
            "[]a]",
            "[^]a]",
            "[+--]",
        ),
        *(
            r"[\b]",
            r"[\1]",
            r"\0",
            "(?a)foo",
            "(?ai)b",
            "(?a:b)",
            "(?#orders)a",
            "(?x)[a#]",
            "a{b}",
            "a{ }",
            "a{1,}",
            "a{2147483648}",
        ),
    ],
)
def test_an_expression_that_java_reads_differently_is_not_registered(text: str) -> None:
    topics = Include(text)
    with pytest.raises(ValueError, match="which Java and Python read differently"):
        topics.portable()


def test_a_number_of_repetitions_with_a_comma_is_refused_with_what_the_comma_means() -> None:
    with pytest.raises(ValueError, match=r'has a `\{` other .* \(a comma means "or", also in `\{1,3\}`\)'):
        Include("orders-[0-9]{1,3}").portable()


@pytest.mark.parametrize("text", [r"\p{Lu}.*", r"\Qa.b\E", "(?<n>a)"])
def test_an_expression_of_java_alone_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression"):
        Include(text)


@pytest.mark.parametrize(
    "text", ["orders.*", "a|b", r"my\.topic-\d+", "(?:a|b)c?", "[^x]+", "a{3}b*", r"a\{b[{]", "[-a.]", r"(?i:[^\d_-])"]
)
def test_expressions_that_both_read_alike_are_accepted(text: str) -> None:
    Include(text).portable()


@pytest.mark.parametrize(
    "text", ["(" * 3000 + ")" * 3000, "a{99999999999999999}", "a{" + "9" * 5000 + "}", "a|" * 2049]
)
def test_excessive_expressions_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression") as refused:
        Include(text)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "größe",
        "(?i)[\u0100-\ufe00]",
        r"[\u0100-\ufe00]",
        r"\U0001f600",
        r"\N{BULLET}",
        r"a\xff",
        r"\x80",
        r"\200",
        r"\\\377",
    ],
)
def test_a_list_beyond_ascii_is_refused(text: str) -> None:
    """No topic name has such a character, and case-insensitive matching of a wide range takes 10 ms."""
    with pytest.raises(ValueError, match="is not a regular expression of ASCII characters alone"):
        Include(text)


@pytest.mark.parametrize("text", [r"\x41.*", r"\177", r"\\u0100", r"\\xff", r"\\N", r"a\.b\d"])
def test_other_escapes_are_read(text: str) -> None:
    Include(text)


@pytest.mark.parametrize(
    "part", ["[ks]", "[!-~]", "[!-~]|", "[^s]", "(?=[ks])", "(?:[ks]*)*", "(?:a" * 200 + "b)" * 200]
)
def test_the_longest_list_compiles_at_once(part: str) -> None:
    """The slowest expression for its length; 0.1 s at most on an idle machine, 5 s with the former limit."""
    begun = time.process_time()
    Include("(?i)" + part * ((MOST_CHARACTERS - 4) // len(part)))
    assert time.process_time() - begun < 1
