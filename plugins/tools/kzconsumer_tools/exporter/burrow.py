"""The documents of Burrow's HTTP interface (v3, of Burrow 1.9), with null for "unknown"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kzconsumer.model import TopicPartition
from kzconsumer.registry.nodes import MOST_PARTITIONS
from kzconsumer.status.partition_health import WINDOW
from kzconsumer_tools.exporter.seen_groups import SeenGroup, SeenPartition

Document = dict[str, Any]

_BAD = ("STOP", "STALL", "REWIND")


def group_status(group: SeenGroup) -> str:
    """ERR, WARN or OK, by the worst partition; UNKNOWN if the lag of one is, or another client has nodes there, and no
    partition is worse.

    A partition that stays without owner is at least WARN. Burrow, which knows neither owners nor logs, says OK then.
    """
    statuses = {_status(each) for each in _with_offset(group)}
    statuses |= {"WARN" for each in group.partitions if each.lasting}
    statuses |= {"UNKNOWN"} if group.total.unknown or group.foreign else set()
    if statuses.intersection(_BAD):
        return "ERR"
    return next((each for each in ("WARN", "UNKNOWN") if each in statuses), "OK")


def status(cluster: str, name: str, group: SeenGroup | None, *, whole: bool) -> Document:
    """The body of `/status`, or with `whole` of `/lag`; status NOTFOUND without a group.

    Of a group that has stored nothing, the lag is null unless its logs are empty. Burrow does not know such a group.
    """
    partitions = [_partition(each) for each in _with_offset(group)] if group is not None else []
    known = [each for each in partitions if each["current_lag"] is not None]
    complete = sum(each["complete"] == 1 for each in partitions) / len(partitions) if partitions else 0.0
    return {
        "cluster": cluster,
        "group": name,
        "status": "NOTFOUND" if group is None else group_status(group),
        "complete": 1.0 if group is None else complete,
        "partitions": [each for each in partitions if whole or each["status"] != "OK"],
        "partition_count": len(partitions),
        "maxlag": max(known, key=lambda each: int(each["current_lag"]), default=None),
        "totallag": 0 if group is None else group.committed.lag if partitions else group.lag,
    }


def consumer(group: SeenGroup) -> dict[str, list[Document | None]]:
    """The topics of `/consumer/GROUP`: a list for each, in which a partition's place is its number.

    A number that no topic can have, of which anybody can make a node, is left out: its list would take all memory.
    """
    topics: dict[str, list[Document | None]] = {}
    for each in _with_offset(group):
        if each.partition >= MOST_PARTITIONS:
            continue
        partitions = topics.setdefault(each.topic, [])
        partitions.extend([None] * (each.partition + 1 - len(partitions)))
        partitions[each.partition] = {
            "offsets": [*[None] * (WINDOW - len(each.commits)), *_offsets(each)],
            "owner": each.owner or "",
            "client_id": each.client,
            "current-lag": each.lag,
        }
    return topics


def consumers_of(groups: Mapping[str, SeenGroup], topic: str) -> list[str]:
    return sorted(name for name, group in groups.items() if any(each.topic == topic for each in _with_offset(group)))


def topic_offsets(ends: Mapping[TopicPartition, int], topic: str, partitions: Sequence[int]) -> list[int | None]:
    """The ends of the logs; a partition's place is its number. The same numbers are left out as in `consumer`."""
    number = min(max(partitions, default=-1) + 1, MOST_PARTITIONS)
    return [ends.get(TopicPartition(topic, each)) for each in range(number)]


def _with_offset(group: SeenGroup) -> list[SeenPartition]:
    return [each for each in group.partitions if each.has_offset]


def _status(each: SeenPartition) -> str:
    return each.judgement or "UNKNOWN"


def _offsets(each: SeenPartition) -> list[Document]:
    return [
        {"offset": commit.offset, "timestamp": _ms(commit.at), "observedAt": _ms(seen), "lag": commit.lag}
        for commit, seen in zip(each.commits, each.seen, strict=True)
    ]


def _partition(each: SeenPartition) -> Document:
    offsets = _offsets(each)
    return {
        "topic": each.topic,
        "partition": each.partition,
        "owner": each.owner or "",
        "client_id": each.client,
        "status": _status(each),
        "start": offsets[0] if offsets else None,
        "end": offsets[-1] if offsets else None,
        "current_lag": each.lag,
        "complete": len(offsets) / WINDOW,
    }


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
