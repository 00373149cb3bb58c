"""`--topic TOPIC` and `--topic TOPIC:0,1,2`: which topics and partitions a verb is about."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from kzconsumer.settings.values import read_topic


def add_topics(action: argparse.ArgumentParser) -> None:
    help = "only this topic, or TOPIC:0,1,2 for some of its partitions; may be repeated"
    action.add_argument("--topic", metavar="TOPIC", type=topic_scope, action="append", help=help)


def topic_scope(text: str) -> tuple[str, tuple[int, ...] | None]:
    topic, colon, numbers = text.partition(":")
    try:
        read_topic(topic)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{topic!r} {error}") from None
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{numbers!r} is not a list of partitions such as 0,1,2")
    return topic, tuple(int(part) for part in parts)


def chosen_topics(given: Iterable[tuple[str, tuple[int, ...] | None]] | None) -> dict[str, set[int] | None] | None:
    """Topic -> partitions (None: all) of all `topic_scope` values together; None if there are none."""
    scope: dict[str, set[int] | None] = {}
    for topic, numbers in given or ():
        known = scope.setdefault(topic, set())
        scope[topic] = None if numbers is None or known is None else known.union(numbers)
    return scope or None
