"""Which log a stored offset refers to.

A number alone does not say: the topic may have been deleted and created again, or its log cut off and grown again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kzconsumer.errors import NotDoneError
from kzconsumer.figures import plural, some
from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import ClaimRecord, decode_claim_record
from kzconsumer.registry.nodes import of_earlier_topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_tools.groups.nodes import GroupNodes, KnownTopic
from kzconsumer_tools.offsets.changes import offset_in

_EARLIER = "earlier"


class Origin(msgspec.Struct, frozen=True):
    """`topic`: the id of the offset's topic, else its incarnation in hexadecimal, or "earlier" if only that is known;
    empty: unknown. `leader_epoch`: of the last record before the offset; -1: unknown."""

    topic: str = ""
    leader_epoch: int = -1

    def differs(self, present: KnownTopic) -> bool:
        """Whether the offset is of another topic than the present one of that name."""
        if not self.topic:
            return False
        known = (present.id, f"{present.incarnation:#x}" if present.incarnation is not None else "")
        return self.topic not in known


UNKNOWN = Origin()


def origin_of(nodes: GroupNodes, partition: TopicPartition) -> Origin:
    """Of a group's stored offset in ZooKeeper. The rules are those of a claim (`kzconsumer.registry.owners`)."""
    node = nodes.offsets.get(GroupPaths(nodes.group).offset(partition))
    offset = offset_in(node.data) if node is not None else None
    if node is None or offset is None:
        return UNKNOWN
    record, topic = record_of(nodes, partition), nodes.topics.get(partition.topic)
    if topic is None:
        return Origin(record.incarnation) if record is not None else UNKNOWN
    present = topic.incarnation
    if record is not None and present is not None and record.incarnation == f"{present:#x}":
        return Origin(topic.id or record.incarnation, record.leader_epoch_before(offset))
    if present is None or of_earlier_topic(node.stat.mzxid, present):
        return Origin(record.incarnation if record is not None else _EARLIER)
    return Origin(topic.id or f"{present:#x}")


def require_present_topics(
    origins: Mapping[TopicPartition, Origin], topics: Mapping[str, KnownTopic], way_out: str
) -> None:
    """Raises NotDoneError if offsets are of other topics than those that have the names now."""
    others = sorted(
        each for each, origin in origins.items() if each.topic in topics and origin.differs(topics[each.topic])
    )
    if others:
        raise NotDoneError(
            f"{plural(len(others), 'offset')} ({some(map(str, others))}) of another topic than the present one of that "
            f"name: it was deleted and created again, or this is another cluster; {way_out} (nothing was changed)"
        )


def record_of(nodes: GroupNodes, partition: TopicPartition) -> ClaimRecord | None:
    """None if there is none, or only one of an unknown format."""
    claim = nodes.claims.get(GroupPaths(nodes.group).claim_record(partition))
    try:
        return decode_claim_record(claim.data) if claim is not None else None
    except ValueError:
        return None
