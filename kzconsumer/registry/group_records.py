"""The nodes of a group beside its offsets and claims: registrations of members, its run, identities of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kzconsumer.model import MOST_STREAMS, TopicPartition
from kzconsumer.registry.nodes import MOST_SHOWN, read_json, read_object
from kzconsumer.settings.sections import SubscriptionSettings
from kzconsumer.settings.value_readers import (
    BLACK_LIST,
    WHITE_LIST,
    Exclude,
    Include,
    TopicFilter,
    is_local,
    read_listen,
)
from kzconsumer.zookeeper.operations import Node, path_fault


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


# `/consumers/<group>/run`: the end offsets of the group's bounded run.

GROUP_RUN_VERSION = 1

DELETED: Final = "0x0"
"""In place of the incarnation of a topic that was deleted, or created again, during the run. No topic has it."""


class TopicEnds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic's end offsets by partition number: the first offset that is not read.

    `incarnation` is the czxid of the topic's node in hexadecimal: the ends do not apply to a recreated topic. A
    `DELETED` topic ends where it was committed.
    """

    incarnation: str
    ends: dict[int, int]


class GroupRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of `/consumers/<group>/run`: the present run, or the last one.

    `stop_at` is -1 for the end of the log, else a time; times are ms since 1970. `subscriptions` are those, as
    registered, whose topics are in `topics`: a partition of them that is not there was created later and is not part of
    the run.
    """

    version: int = GROUP_RUN_VERSION
    id: str
    stop_at: int
    began: int
    subscriptions: tuple[str, ...]
    topics: dict[str, TopicEnds]
    finished: int | None = None

    def end(self, partition: TopicPartition, incarnation: int) -> int | None:
        """The end offset of a partition; None if it is not part of the run."""
        topic = self.topics.get(partition.topic)
        if topic is None or topic.incarnation != f"{incarnation:#x}":
            return None
        return topic.ends.get(partition.partition)

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        topics = self.topics.items()
        return {TopicPartition(name, number): end for name, topic in topics for number, end in topic.ends.items()}

    def ending_at(self, ends: Mapping[TopicPartition, int]) -> GroupRun:
        """The run with other ends of some of its partitions."""
        topics = dict(self.topics)
        for (topic, number), end in ends.items():
            found = topics[topic]
            topics[topic] = msgspec.structs.replace(found, ends={**found.ends, number: end})
        return msgspec.structs.replace(self, topics=topics)

    def without(self, committed: Mapping[TopicPartition, int]) -> GroupRun:
        """The run after the topics of these partitions were deleted, which are all that it has of these topics."""
        run = self.ending_at(committed)
        deleted = {
            name: msgspec.structs.replace(run.topics[name], incarnation=DELETED)
            for name in {partition.topic for partition in committed}
        }
        return msgspec.structs.replace(run, topics=run.topics | deleted)


def encode_group_run(run: GroupRun) -> bytes:
    return msgspec.json.encode(run)


def decode_group_run(data: bytes) -> GroupRun:
    """Raises ValueError for an unknown format."""
    try:
        run = read_json(data, GroupRun)
    except ValueError as error:
        raise ValueError(f"not a group's run: {error}") from error
    if run.version != GROUP_RUN_VERSION:
        raise ValueError(f"a group's run of format {run.version}, this version knows {GROUP_RUN_VERSION}")
    return run


# The identity of a topic where brokers report topics by id: `/consumers/<group>/topics/<topic>`.
#
# Claim records, plans and destinations identify a topic by its incarnation, a transaction of ZooKeeper. So each topic
# id gets one: the czxid of the topic's node if a cluster in ZooKeeper mode has created the topic, which keeps its
# identity through a migration, else the transaction that records the id here. Both are later than every offset stored
# before.

TOPIC_RECORD_VERSION = 1


class TopicRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the node.

    `ids` are the ids of the topics that had the name, the present one last: one of the others is what a broker reports
    that lags behind. `incarnation`: empty for the transaction that wrote this.
    """

    version: int
    ids: tuple[str, ...]
    incarnation: str = ""

    def followed_by(self, topic_id: str) -> TopicRecord:
        return TopicRecord(TOPIC_RECORD_VERSION, (*self.ids, topic_id))


def decode_topic_record(data: bytes) -> TopicRecord:
    """Raises ValueError."""
    record = read_json(data, TopicRecord)
    if record.version != TOPIC_RECORD_VERSION or not record.ids:
        raise ValueError(f"topic record of format {record.version}, this version knows {TOPIC_RECORD_VERSION}")
    return record


def incarnation_of(node: Node, topic_id: str) -> int | None:
    """The incarnation of the topic with that id; None if it is of an earlier topic.

    Raises LookupError if the id is not recorded, ValueError.
    """
    record = decode_topic_record(node.data)
    if topic_id not in record.ids:
        raise LookupError(topic_id)
    if topic_id != record.ids[-1]:
        return None
    return last_incarnation(node)


def last_incarnation(node: Node) -> int:
    """The incarnation of the topic that was seen last. Raises ValueError."""
    record = decode_topic_record(node.data)
    return int(record.incarnation, 16) if record.incarnation else node.stat.mzxid
