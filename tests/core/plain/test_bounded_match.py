"""Patterns of others: the same topics as with `re`, and never longer than a moment."""

from __future__ import annotations

import re
import time
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kzconsumer.registry.group_records import Registration, streams_by_topic
from kzconsumer.settings import bounded_match
from kzconsumer.settings.bounded_match import matcher, matcher_in_steps
from kzconsumer.settings.value_readers import WHITE_LIST, Include

ATOMS = (
    *("a", "b", ".", "(?s:.)", "[ab]", "[^a]", "[a-c]", "[^a-b-]", r"\.", "(?i:A)", "(?i:[a-b])", "-", "^", "$"),
    *(r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"[\d-]", r"[^\d]", r"[\W\d]", r"[^\W]", r"[\s.]", r"[^\s]"),
    *(r"\b", r"\B", r"\A", r"\Z", "(?m:^)", "(?m:$)", "(?<=a)", "(?<!b)", r"(?<=\w-)"),
)
ALPHABET = "abc.-1A_ \n\u0663\u00b2\u00e9\u00a0\u01c0"
"""With a digit, a numeral, a letter and a space that ASCII has not, and a letter that has no other case."""
_ATOMS = st.sampled_from(ATOMS)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    many = st.sampled_from(["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}", "{2,}"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        st.tuples(inner, many).map(lambda each: f"(?:{each[0]}){each[1]}"),
        inner.map(lambda each: f"({each})"),
        inner.map(lambda each: f"(?={each})"),
        inner.map(lambda each: f"(?!{each})"),
    )


EXPRESSIONS = st.recursive(_ATOMS, _grown, max_leaves=6)
TEXTS = st.text(ALPHABET, min_size=1, max_size=7)
"""No topic has an empty name; before 3.14 `re` finds no `\\B` in it."""


@pytest.mark.parametrize("atom", ATOMS)
def test_each_atom_matches_what_it_does_with_re(atom: str) -> None:
    """Between any two characters."""
    expression = f"(?s:.?){atom}(?s:.?)"
    in_steps, pattern = matcher_in_steps(expression), re.compile(expression)
    for text in (*ALPHABET, *map("".join, product(ALPHABET, repeat=2))):
        assert in_steps(text) == (pattern.fullmatch(text) is not None), text


@example("(?!a)b", ["b"])
@given(EXPRESSIONS, st.lists(TEXTS, min_size=1, max_size=8))
def test_the_same_texts_match_as_with_re(expression: str, texts: list[str]) -> None:
    in_steps = matcher_in_steps(expression)
    for text in texts:
        assert in_steps(text) == (re.fullmatch(expression, text) is not None) == matcher(expression)(text), (
            expression,
            text,
        )


@pytest.mark.parametrize(
    ("expression", "text", "matches"),
    [
        (r"(?<=a)b", "b", False),
        (r"a(?<=a)b(?<!ab)c", "abc", False),
        (r"a(?<=a)b(?<!b)c|(a(?<!b)b)+c", "ababc", True),
        (r"(?i)(orders|pay)+", "ORDERSpay", True),
        (r"(a|c){1,3}", "aaaa", False),
        (r"(a|c){1,3}", "aca", True),
        (r"(a|c){2}", "a", False),
        (r"(?s)(.|x)*", "a\nb", True),
        (r"(a|b)*(a|b)*$", "ab\n", False),
        (r"(?m)(a|\n)*^b$(\n|c)*", "a\nb\nc", True),
    ],
)
def test_what_the_property_does_not_make(expression: str, text: str, matches: bool) -> None:
    assert matcher_in_steps(expression)(text) == matches
    assert (re.fullmatch(expression, text) is not None) == matches


DEEP = "(" * 40 + "a" + "*)" * 40 + "b"
EVIL = ["(a+)+b", "(a|a)*b", "(a|aa)+$x", ".*.*.*.*.*.*.*.*x", "((a*)*)*b", "(.*)+(.*)+z", "(?=(a+)+b)a*", DEEP]


@pytest.mark.parametrize("expression", EVIL)
def test_a_pattern_that_backtracks_takes_a_moment(expression: str) -> None:
    """With `re` the first of these takes more than the age of the world."""
    topics = [*("a" * number for number in (1, 30, 249)), "ab", "aab", *(f"topic-{number}" for number in range(200))]
    began = time.process_time()
    streams = streams_by_topic(Registration(WHITE_LIST, {expression: 2}, ours=False), topics)
    assert time.process_time() - began < 5
    assert ("ab" in streams, "aab" in streams) == ((expression != "(?=(a+)+b)a*" and expression[-1] == "b"),) * 2


@pytest.mark.parametrize("expression", [r"(a+)+(b)\2", "(a+)++b(c*)*(d*)*", r"(?>(a+)+)b"])
def test_what_cannot_be_matched_in_bounded_time_is_unusable(expression: str) -> None:
    with pytest.raises(ValueError, match="cannot be matched in bounded time"):
        Include(expression)
    assert Include(r"(a)\1").allows("aa"), "with few repetitions every expression is matched"


def test_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_match, "MOST_STEPS", 40)
    assert not Include("(a+)+b").allows("a" * 9)
    with pytest.raises(ValueError, match="takes more than 40 steps to match a name of 60 characters"):
        Include("(a+)+b").allows("a" * 60)
