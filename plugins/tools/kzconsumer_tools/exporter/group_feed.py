"""A group with any members as `kzconsumer top` shows it, from the exporter's reading of its nodes and logs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer.display import some
from kzconsumer.lag.partition import FAULTS, Reason
from kzconsumer.lag.totals import Finding, FindingId, age_text, examined, finding, lag_text, of_partitions
from kzconsumer.model import TopicPartition
from kzconsumer.registry.cluster import LIMIT
from kzconsumer.settings.settings import Settings
from kzconsumer_tools.exporter.exporter import Exporter, ExporterReading
from kzconsumer_tools.exporter.seen_groups import SeenGroup, SeenPartition
from kzconsumer_tools.top_feed import Address, DaemonFeed

#: Seconds between two readings, and after which a partition that is behind and does not advance is stalled.
INTERVAL, STALLED_AFTER = 5.0, 300.0
#: Readings from which rates are computed.
RATED = 13


class GroupFeed(DaemonFeed):
    """`run` keeps it up to date."""

    def __init__(self, settings: Settings, group: str) -> None:
        super().__init__(Address(settings.zookeeper.connect), group=True)
        self._group = self.of = group
        self._exporter = Exporter(settings, "", INTERVAL, STALLED_AFTER, wanted=lambda name: name == group)
        self._last: ExporterReading | None = None
        self._stored: deque[tuple[float, Mapping[TopicPartition, int]]] = deque(maxlen=RATED)

    async def run(self) -> None:
        silent_at = now() + LIMIT
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._exporter.run)
            while True:
                self._look(silent=now() >= silent_at)
                await anyio.sleep(INTERVAL / 10)

    def _look(self, *, silent: bool) -> None:
        """`silent`: an answer is overdue. A ZooKeeper that takes connections and does not answer fails no reading."""
        reading = self._exporter.present
        if reading is None:
            if self._last is not None or self._exporter.settled or silent:
                self._lose(self._exporter.absence)
            return
        if reading is self._last:
            return
        self._last = reading
        seen = reading.groups.get(self._group)
        if seen is None:
            self._lose(reading.unreadable.get(self._group, f"there is no group {self._group}"))
            return
        stored = {TopicPartition(each.topic, each.partition): each.stored for each in seen.partitions}
        self._stored.append((reading.at, {each: at for each, at in stored.items() if at is not None}))
        self.documents = documents(seen, reading, rates(self._stored))
        self.lost, self.reason = None, ""
        self.answered.set()

    def _lose(self, reason: str) -> None:
        self.lost, self.reason = self.lost or time.time(), reason
        self.answered.set()


def rates(stored: Sequence[tuple[float, Mapping[TopicPartition, int]]]) -> dict[TopicPartition, float]:
    """Offsets committed per second over these readings, none from a single one."""
    (since, first), (at, last) = stored[0], stored[-1]
    if at <= since:
        return {}
    return {each: max(0.0, (offset - first[each]) / (at - since)) for each, offset in last.items() if each in first}


def documents(seen: SeenGroup, reading: ExporterReading, found: Mapping[TopicPartition, float]) -> dict[str, Any]:
    """With the fields that `top` shows of a daemon's documents."""
    sums = seen.total
    problems = [*_findings(seen)]
    not_asked = [f"lag of {n} unknown: {why}" for why, n in sums.unknown.items() if why not in FAULTS]
    if seen.foreign and seen.partitions:
        not_asked.append(f"nodes of another client, such as a Storm spout: {some(seen.foreign, 3)}")
    health = examined(problems, not_asked)
    rows = [each for each in seen.partitions if not each.found.gone]
    status = {
        "group": seen.group,
        "owned": len(rows),
        "members": seen.members,
        "lag_text": lag_text(sums),
        "lag_seconds_text": age_text(sums),
        "total": {"at_least": sums.at_least, "unknown": sums.unknown},
        "rate": sum(found.values()) if found else None,
        "stalled": sum(_stalled(each) for each in rows),
        "health": health.health,
        "findings": msgspec.to_builtins(health.findings),
        "not_asked": health.not_asked,
        "ready": True,
        "alive": True,
    }
    partitions = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "owner": each.owner,
            "committed": each.stored,
            "end": reading.ends.get(TopicPartition(each.topic, each.partition)),
            "lag": each.lag,
            "rate": found.get(TopicPartition(each.topic, each.partition)),
        }
        for each in rows
    ]
    return {"status": status, "group": {"partitions": partitions}}


def _stalled(each: SeenPartition) -> bool:
    return each.standing is not None and each.standing >= STALLED_AFTER


def _unknown(seen: SeenGroup, reason: Reason) -> list[SeenPartition]:
    return [each for each in seen.partitions if each.found.why is not None and each.found.why.reason == reason]


def _findings(seen: SeenGroup) -> list[Finding]:
    group, sums = seen.group, seen.total
    found = []
    if not seen.members and sums.at_least:
        found.append(finding("no_members", group, "no members, and records are left to read"))
    kinds: list[tuple[FindingId, str, str, list[SeenPartition]]] = [
        ("unowned", "without owner", "two readings", [each for each in seen.partitions if each.lasting]),
        ("stalled", "stalled", "behind and not advancing", [each for each in seen.partitions if _stalled(each)]),
        ("no_leader", "without leader", "nobody can read them", _unknown(seen, "no leader")),
        (
            "offsets_after_log",
            "with an offset of no use",
            "after the log's end",
            _unknown(seen, "offset after the log's end"),
        ),
        ("not_readable", "with an offset of no use", "it cannot be read", _unknown(seen, "offset unreadable")),
        (
            "topic_recreated",
            "with an offset of no use",
            "it is of an earlier topic of that name",
            _unknown(seen, "offset of an earlier topic"),
        ),
        ("topic_gone", "that the cluster does not have", "groups clean", [p for p in seen.partitions if p.found.gone]),
        ("offsets_lost", "lost records", "retention", [p for p in seen.partitions if p.found.lost]),
    ]
    for id, what, why, chosen in kinds:
        if chosen and (seen.members or id != "stalled"):  # without members that is one finding
            names = [f"{each.topic}-{each.partition}" for each in chosen]
            found.append(of_partitions(id, group, names, what, why))
    return found
