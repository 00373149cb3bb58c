"""The record of a group's bounded run: its end offsets."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.registry.node_json import read_json

GROUP_RUN_VERSION = 1


class TopicEnds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic's end offsets by partition number: the first offset that is not read.

    `incarnation` is the czxid of the topic's node in hexadecimal: the ends do not apply to a recreated topic.
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
