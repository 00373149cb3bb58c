"""What an exporter reports of each group, and the histories that follow from one reading to the next.

Times are seconds since 1970. Unknown values are None, never 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

import msgspec

from kzconsumer.lag.growth import LogGrowth
from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.status.judgement import WINDOW, Commit, Judgement, judge
from kzconsumer_tools.groups.description import described_partitions
from kzconsumer_tools.groups.nodes import GroupNodes, facts


class ReadPartition(msgspec.Struct, frozen=True):
    """`committed`: when `stored` was written, None if that is not known; `unreadable`: the offset is no number."""

    topic: str
    partition: int
    owner: str | None
    unowned: bool
    stored: int | None
    committed: float | None = None
    unreadable: bool = False
    client: str = ""

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReadGroup(msgspec.Struct, frozen=True):
    """A group as it was read. `existing`: the partitions of its topics that the cluster has."""

    members: int
    partitions: tuple[ReadPartition, ...]
    existing: frozenset[TopicPartition]


def group_of_nodes(nodes: GroupNodes) -> ReadGroup:
    known = facts(nodes)
    unreadable = {each.path for each in known.findings if each.kind == "unreadable_offset"}
    rows = []
    for each in described_partitions(nodes, known):
        path = GroupPaths(nodes.group).offset(TopicPartition(each.topic, each.partition))
        committed = nodes.offsets[path].stat.mtime / 1000 if each.stored is not None else None
        rows.append(
            ReadPartition(
                each.topic, each.partition, each.owner, each.unowned, each.stored, committed, path in unreadable
            )
        )
    return ReadGroup(len(known.members), tuple(rows), known.existing)


class SeenPartition(msgspec.Struct, frozen=True):
    """`seconds`: the age of the next record to be read; `standing`: for how long it has been behind without advancing.

    `unreadable`: there is an offset node, which holds no number. `commits` are the window of the judgement, each with
    the time when it was first seen in `seen`.
    """

    topic: str
    partition: int
    owner: str | None
    unowned: bool
    stored: int | None
    unreadable: bool
    lag: int | None
    seconds: float | None
    standing: float | None
    judgement: Judgement | None
    commits: tuple[Commit, ...]
    seen: tuple[float, ...]
    client: str = ""

    @property
    def has_offset(self) -> bool:
        return self.stored is not None or self.unreadable


class SeenGroup(msgspec.Struct, frozen=True):
    group: str
    members: int
    partitions: tuple[SeenPartition, ...]

    @property
    def unknown(self) -> int:
        """Number of partitions with an offset node and without a known lag."""
        return sum(each.has_offset and each.lag is None for each in self.partitions)

    @property
    def lag(self) -> int | None:
        """The sum; None if that of one partition is unknown."""
        return None if self.unknown else sum(each.lag for each in self.partitions if each.lag is not None)

    @property
    def seconds(self) -> float | None:
        """The largest; None if that of one partition with an offset node is unknown."""
        ages = [each.seconds for each in self.partitions if each.has_offset]
        return max((age for age in ages if age is not None), default=0.0) if None not in ages else None


class Histories:
    """One object follows a cluster; `look` is called with every reading."""

    def __init__(self, interval: float) -> None:
        """`interval`: seconds between two readings. A single commit is judged as a window of WINDOW intervals."""
        self._alone = WINDOW * interval
        self._of_logs: dict[TopicPartition, _LogHistory] = {}
        self._of_groups: dict[tuple[str, TopicPartition], _CommitHistory] = {}

    def look(
        self,
        groups: Mapping[str, ReadGroup],
        ends: Mapping[TopicPartition, int],
        written: Mapping[tuple[TopicPartition, int], float],
        now: float,
        *,
        unread: Collection[str] = (),
    ) -> dict[str, SeenGroup]:
        """`ends`: those that are known; `written`: the time of the record at an offset, where it was looked up.

        `unread`: groups that may exist and could not be read: they keep their history.
        """
        for partition, end in ends.items():
            self._of_logs.setdefault(partition, _LogHistory()).saw(end, now)
        present = {(name, each.place) for name, group in groups.items() for each in group.partitions}
        present.update(key for key in self._of_groups if key[0] in unread)
        self._of_groups = {key: history for key, history in self._of_groups.items() if key in present}
        logs = {partition for _, partition in present}
        self._of_logs = {partition: history for partition, history in self._of_logs.items() if partition in logs}
        seen = {}
        for name, group in groups.items():
            partitions = [self._partition(name, each, ends, written, now) for each in group.partitions]
            seen[name] = SeenGroup(name, group.members, tuple(partitions))
        return seen

    def age_unknown(
        self, groups: Mapping[str, ReadGroup], ends: Mapping[TopicPartition, int]
    ) -> set[tuple[TopicPartition, int]]:
        """Partitions and offsets of records that were written before the first observation of their log."""
        found = set()
        for group in groups.values():
            for each in group.partitions:
                partition, end = each.place, ends.get(each.place)
                if end is not None and each.stored is not None and each.stored < end:
                    history = self._of_logs.get(partition)
                    if history is None or history.growth.reached(each.stored) is None:
                        found.add((partition, each.stored))
        return found

    def _partition(
        self,
        group: str,
        each: ReadPartition,
        ends: Mapping[TopicPartition, int],
        written: Mapping[tuple[TopicPartition, int], float],
        now: float,
    ) -> SeenPartition:
        partition, stored = each.place, each.stored
        end = ends.get(partition)
        lag = end - stored if end is not None and stored is not None and stored <= end else None
        history = self._of_groups.setdefault((group, partition), _CommitHistory(now))
        log = self._of_logs.get(partition) or _LogHistory()
        if stored is not None:
            history.saw(each.committed, stored, lag, now)
        since = None if stored is None else log.growth.reached(stored) or written.get((partition, stored))
        age = None if lag is None else 0.0 if lag == 0 else None if since is None else max(0.0, now - since)
        return SeenPartition(
            topic=each.topic,
            partition=each.partition,
            owner=each.owner,
            unowned=each.unowned,
            stored=stored,
            unreadable=each.unreadable,
            lag=lag,
            seconds=age,
            standing=None if lag is None else 0.0 if lag == 0 else now - history.advanced,
            judgement=judge(history.commits, lag, now, log.ends, self._alone),
            commits=tuple(history.commits),
            seen=tuple(history.seen),
            client=each.client,
        )


class _LogHistory:
    def __init__(self) -> None:
        self.growth = LogGrowth()
        self.ends: deque[int] = deque(maxlen=WINDOW)

    def saw(self, end: int, now: float) -> None:
        self.growth.saw(end, now)
        self.ends.append(end)


class _CommitHistory:
    def __init__(self, now: float) -> None:
        self.commits: deque[Commit] = deque(maxlen=WINDOW)
        self.seen: deque[float] = deque(maxlen=WINDOW)
        self.advanced = now

    def saw(self, at: float | None, stored: int, lag: int | None, now: float) -> None:
        """The offset stored at the time `at`; None if that is unknown: then only another offset is another commit."""
        last = self.commits[-1] if self.commits else None
        if at is None:
            at = last.at if last is not None and last.offset == stored else now
        if last is None or (last.at, last.offset) != (at, stored):
            self.commits.append(Commit(at, stored, lag))
            self.seen.append(now)
        if lag == 0 or last is None or last.offset != stored:
            self.advanced = now
