"""Registrations of members: their content, and the topics and streams that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kzconsumer.model import MOST_STREAMS
from kzconsumer.registry.node_json import read_object
from kzconsumer.registry.nodes import MOST_SHOWN
from kzconsumer.settings.sections import SubscriptionSettings
from kzconsumer.settings.topic_filter import BLACK_LIST, WHITE_LIST, Exclude, Include, TopicFilter
from kzconsumer.settings.values import is_local, read_listen
from kzconsumer.zookeeper.connect_string import path_fault


def has_wildcard(registration: Registration) -> bool:
    return registration.pattern in (WHITE_LIST, BLACK_LIST)


def registered(wanted: SubscriptionSettings) -> Registration:
    """The registration of a member with these settings."""
    if wanted.filter is not None:
        return Registration.of_filter(wanted.filter, wanted.streams)
    return Registration.of_topics(wanted.topics)


def streams_by_topic(registration: Registration, all_topics: Iterable[str]) -> dict[str, int]:
    """Topic -> number of streams. Of several patterns only the first counts, as in the original.

    Raises ValueError for an invalid pattern.
    """
    if registration.pattern == STATIC:
        return registration.subscription
    text, streams = next(iter(registration.subscription.items()))
    topics: TopicFilter = Include(text) if registration.pattern == WHITE_LIST else Exclude(text)
    return {topic: streams for topic in all_topics if topics.allows(topic)}


def subscribed_topics(members: Mapping[str, Registration], all_topics: tuple[str, ...]) -> list[str]:
    """Every topic that a member subscribes to."""
    return sorted({topic for member in members.values() for topic in streams_by_topic(member, all_topics)})


def needs_all_topics(members: Mapping[str, Registration]) -> bool:
    return any(has_wildcard(member) for member in members.values())


STATIC = "static"


class Registration(msgspec.Struct, frozen=True):
    """The content of `ids/<consumer>`: topic (or one pattern) -> number of streams."""

    pattern: str
    subscription: dict[str, int]
    ours: bool
    status: str = ""
    """Host and port of its status page; empty if it has published none."""

    def __post_init__(self) -> None:
        if sum(self.subscription.values()) > MOST_STREAMS:
            raise ValueError(f"more than {MOST_STREAMS} streams in one member")

    @classmethod
    def of_topics(cls, topics: Mapping[str, int]) -> Registration:
        """For these topics: topic -> number of streams. Raises ValueError beyond MOST_STREAMS."""
        return cls(STATIC, dict(topics), ours=True)

    @classmethod
    def of_filter(cls, topics: TopicFilter, streams: int) -> Registration:
        """For all topics that the list allows. Raises ValueError beyond MOST_STREAMS."""
        return cls(topics.pattern, {topics.regex: streams}, ours=True)


def encode_registration(
    subscription: Mapping[str, int], timestamp_ms: int, version: str, pattern: str = STATIC, status: str = ""
) -> bytes:
    """The original's JSON with more fields; the original reads `pattern` and `subscription` only."""
    fields: dict[str, object] = {
        "version": 1,
        "subscription": subscription,
        "pattern": pattern,
        "timestamp": str(timestamp_ms),
        "kzconsumer": version,
    }
    return msgspec.json.encode({**fields, "status": status} if status else fields)


def decode_registration(data: bytes) -> Registration:
    """Any member's registration; as in 1.1.x, doubled backslashes are tried for 0.8 writers.

    All members read all registrations at each rebalance, so absurd ones are refused: more than MOST_STREAMS streams,
    and names that are no path for ZooKeeper (which the original fails on, too).
    """
    try:
        fields = read_object(data)
    except ValueError:
        fields = read_object(data.replace(b"\\", b"\\\\"))
    subscription = fields.get("subscription")
    pattern = fields.get("pattern")
    if not isinstance(subscription, dict) or not isinstance(pattern, str):
        raise ValueError("no pattern or no subscription")
    for topic, streams in subscription.items():
        if not isinstance(streams, int) or isinstance(streams, bool) or streams < 1:
            shown = streams if isinstance(streams, (int, float)) else type(streams).__name__
            raise ValueError(f"{shown} is not a number of streams (for {topic[:MOST_SHOWN]!r})")
    if pattern not in (WHITE_LIST, BLACK_LIST):
        pattern = STATIC  # as in the original, any other word
    elif not subscription:
        raise ValueError(f"a {pattern} without a pattern")
    if pattern == STATIC:
        for topic in subscription:
            if fault := path_fault(f"/{topic}"):
                raise ValueError(f"{topic[:MOST_SHOWN]!r} is not a valid topic: its path {fault}")
    ours, status = "kzconsumer" in fields, _address(fields.get("status"))
    return Registration(pattern=pattern, subscription=subscription, ours=ours, status=status)


def _address(status: object) -> str:
    """The address if it is a host and a port of another machine, since browsers are sent there; else empty."""
    try:
        address = read_listen(status)
    except ValueError:
        return ""
    return "" if is_local(address) else address
