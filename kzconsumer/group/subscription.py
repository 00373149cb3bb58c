"""Which topics a member's registration stands for.

Pure. White and black lists are read here because other members of the group may use them: every member must expand
everybody's subscription to the same threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kzconsumer.zookeeper.znodes import BLACK_LIST, STATIC, WHITE_LIST, Registration

# `org.apache.kafka.common.internals.Topic`: wildcards leave them out, a static subscription may name them.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


def has_wildcard(registration: Registration) -> bool:
    return registration.pattern in (WHITE_LIST, BLACK_LIST)


def streams_by_topic(registration: Registration, all_topics: Iterable[str]) -> dict[str, int]:
    """Topic -> number of streams. Of a list's entries only the first counts, as in the original.

    Raises ValueError for a pattern that is not a regular expression.
    """
    if registration.pattern == STATIC:
        return registration.subscription
    text, streams = next(iter(registration.subscription.items()))
    try:
        pattern = re.compile(normalised(text))
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    wanted = registration.pattern == WHITE_LIST
    return {
        topic: streams
        for topic in all_topics
        if topic not in INTERNAL_TOPICS and (pattern.fullmatch(topic) is not None) == wanted
    }


def normalised(text: str) -> str:
    """A topic filter's text as `kafka.consumer.TopicFilter` (1.1.1) reads it."""
    return text.strip().replace(",", "|").replace(" ", "").strip("\"'")
