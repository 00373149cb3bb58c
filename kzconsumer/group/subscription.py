"""Which topics and threads a member's registration stands for.

Pure. Every member expands everybody's subscription, and all must come to the same threads.
"""

from __future__ import annotations

from collections.abc import Iterable

from kzconsumer.settings.sections import SubscriptionSettings
from kzconsumer.settings.topic_filter import BLACK_LIST, WHITE_LIST, Blacklist, TopicFilter, Whitelist
from kzconsumer.zookeeper.znodes import STATIC, Registration


def has_wildcard(registration: Registration) -> bool:
    return registration.pattern in (WHITE_LIST, BLACK_LIST)


def registered(wanted: SubscriptionSettings) -> Registration:
    """What a member with these settings says of itself."""
    if wanted.filter is not None:
        return Registration.of_filter(wanted.filter, wanted.streams)
    return Registration.of_topics(wanted.topics)


def streams_by_topic(registration: Registration, all_topics: Iterable[str]) -> dict[str, int]:
    """Topic -> number of streams. Of a list's entries only the first counts, as in the original.

    Raises ValueError for a pattern that is not a regular expression.
    """
    if registration.pattern == STATIC:
        return registration.subscription
    text, streams = next(iter(registration.subscription.items()))
    topics: TopicFilter = Whitelist(text) if registration.pattern == WHITE_LIST else Blacklist(text)
    return {topic: streams for topic in all_topics if topics.allows(topic)}
