r"""White and black lists of topics, as the original consumer reads them.

All members of a group must expand a list to the same topics, or partitions stay without owner. So the expression must
mean the same here and in Java, whose members may be in the group.
"""

from __future__ import annotations

import re
import warnings

from kzconsumer.settings.bounded_match import matcher

MOST_CHARACTERS = 1 << 12
"""Of a list: Python takes about 0.1 s to compile the worst of this length, `(?i)` and `[ks]` a thousand times."""

WHITE_LIST = "white_list"
BLACK_LIST = "black_list"

# `org.apache.kafka.common.internals.Topic`: lists leave them out, a static subscription may name them.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})

# An escape, and as `beyond` one that stands for a character beyond ASCII.
_ESCAPE = re.compile(r"\\(?:(?P<beyond>[uUN]|x[89a-fA-F]|[23][0-7][0-7])|.)", re.DOTALL)

# What Java and Python read differently, or only one of them knows.
_NOT_PORTABLE = {
    "&&": "an intersection of character classes",
    r"\p": r"\p{...}",
    r"\P": r"\P{...}",
    r"\Q": r"\Q...\E",
    r"\R": r"\R",
    r"\h": r"\h",
    r"\G": r"\G",
    r"\z": r"\z",
    r"\Z": r"\Z",
    "(?P": "a group named as in Python",
    "(?<": "a look-behind or a group named as in Java",
    "(?(": "a conditional group",
}


class TopicFilter:
    """A list's expression; use Include or Exclude.

    The text is normalised first: outer white space and quotes go, commas become `|`, spaces vanish. A topic must match
    the whole expression. Internal topics are never matched. Source: `kafka.consumer.TopicFilter` (1.1.1).
    Raises ValueError for a text that is no regular expression, is too long, cannot be matched in a bounded time
    (`bounded_match`), or has characters beyond ASCII: no topic's name has any, and Python takes 10 ms for each range of
    them whose case it ignores.
    """

    pattern: str

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"{_shown(text)} is not a regular expression of at most {MOST_CHARACTERS} characters")
        self.regex = normalised(text)
        if not self.regex.isascii() or any(escape["beyond"] for escape in _ESCAPE.finditer(self.regex)):
            raise ValueError(f"{_shown(text)} is not a regular expression of ASCII characters alone")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of what may mean something else one day
                self._matches = matcher(self.regex)
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{_shown(text)} is not a regular expression: {error}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.regex!r})"

    def allows(self, topic: str) -> bool:
        """Raises TooManySteps, a ValueError, for an expression that no engine could match in a bounded time."""
        matches = self._matches(topic)
        return topic not in INTERNAL_TOPICS and matches == (self.pattern == WHITE_LIST)

    def portable(self) -> None:
        """Raises ValueError for an expression that Java reads differently, which must not be registered."""
        for sign, meaning in _NOT_PORTABLE.items():
            if sign in self.regex:
                raise ValueError(f"{self.regex!r} has {meaning}, which Java and Python read differently")


class Include(TopicFilter):
    """Topics that match."""

    pattern = WHITE_LIST


class Exclude(TopicFilter):
    """Topics that do not match."""

    pattern = BLACK_LIST


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def normalised(text: str) -> str:
    """A list's text as the original normalises it."""
    return text.strip().replace(",", "|").replace(" ", "").strip("\"'")
