"""What an exporter reports of each group, and the histories that follow from one reading to the next.

Times are seconds since 1970, unless they are of the steady clock. Unknown values are None, never 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from kzconsumer.lag.partition import (
    History,
    Measured,
    PartitionFacts,
    PartitionLag,
    Reason,
    Why,
    partition_lag,
)
from kzconsumer.lag.totals import Total, total
from kzconsumer.lag.write_times import LogGrowth
from kzconsumer.model import TopicPartition
from kzconsumer.status.partition_health import WINDOW, Commit, Judgement, judge
from kzconsumer_tools.groups.group_description import described_partitions
from kzconsumer_tools.groups.group_lag import LogRange, Logs, stored_at
from kzconsumer_tools.groups.group_nodes import GroupNodes, facts


class ReadPartition(msgspec.Struct, frozen=True, gc=False):
    """`committed`: when `stored` was written, None if that is not known; `useless`: why there is an offset node, and no
    `stored`; `gone`: the cluster has no such partition."""

    topic: str
    partition: int
    owner: str | None
    unowned: bool
    stored: int | None
    committed: float | None = None
    useless: Reason | None = None
    client: str = ""
    gone: bool = False

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class ReadGroup(msgspec.Struct, frozen=True):
    """A group as it was read. `existing`: the partitions of its topics that the cluster has, or may have. `foreign`:
    names of another client's nodes, such as a Storm spout's, which may keep its offsets there."""

    members: int
    partitions: tuple[ReadPartition, ...]
    existing: frozenset[TopicPartition]
    foreign: tuple[str, ...] = ()


def group_of_nodes(nodes: GroupNodes) -> ReadGroup:
    known = facts(nodes)
    rows = []
    for each in described_partitions(nodes, known):
        place = TopicPartition(each.topic, each.partition)
        if known.gone(place) and place not in known.offsets:
            continue  # a claim record, or an owner, of what does not exist: there is no offset that could be left over
        committed = stored_at(nodes, known, place) if each.stored is not None else None
        rows.append(
            ReadPartition(
                each.topic,
                each.partition,
                each.owner,
                each.unowned,
                each.stored,
                committed,
                each.why if each.why != "never committed" else None,
                gone=known.gone(place),
            )
        )
    asked = known.existing.union(place for place in known.offsets if not known.gone(place))
    return ReadGroup(len(nodes.registrations), tuple(rows), asked, nodes.foreign)


class SeenPartition(msgspec.Struct, frozen=True, gc=False):
    """`found`: how far behind, or why that is unknown. `standing`: for how long it has been behind without advancing;
    `lasting`: it was without owner in the reading before, too, so that is no rebalance.

    `useless`: why there is an offset node, and no offset to begin at. `commits` are the window of the judgement, each
    with the time when it was first seen in `seen`. `committed`: when `stored` was written, None if that is not known.
    """

    topic: str
    partition: int
    owner: str | None
    unowned: bool
    lasting: bool
    stored: int | None
    useless: Reason | None
    found: PartitionLag
    standing: float | None
    judgement: Judgement | None
    commits: tuple[Commit, ...]
    seen: tuple[float, ...]
    client: str = ""
    committed: float | None = None

    @property
    def has_offset(self) -> bool:
        """Of a partition that exists."""
        return (self.stored is not None or self.useless is not None) and not self.found.gone

    @property
    def lag(self) -> int | None:
        return self.found.lag

    @property
    def seconds(self) -> float | None:
        return self.found.seconds


class SeenGroup(msgspec.Struct, frozen=True):
    group: str
    members: int
    partitions: tuple[SeenPartition, ...]
    foreign: tuple[str, ...] = ()

    @property
    def total(self) -> Total:
        elsewhere = 0 if self.partitions else len(self.foreign)
        return total((each.found for each in self.partitions), elsewhere=elsewhere)

    @property
    def lag(self) -> int | None:
        """Of all its partitions. Unknown of a group without any, which may just have started."""
        sums = self.total
        return None if sums.empty else sums.lag

    @property
    def committed(self) -> Total:
        """Of the partitions with an offset: what Burrow knows of."""
        return total(each.found for each in self.partitions if each.has_offset)


class Histories:
    """One object follows a cluster; `look` is called with every reading."""

    def __init__(self, interval: float) -> None:
        """`interval`: seconds between two readings. A single commit is judged as a window of WINDOW intervals."""
        self._alone = WINDOW * interval
        self._of_logs: dict[TopicPartition, _LogHistory] = {}
        self.of_groups: dict[str, dict[TopicPartition, _CommitHistory]] = {}

    def look(
        self,
        groups: Mapping[str, ReadGroup],
        logs: Logs,
        written: Mapping[tuple[TopicPartition, int], float | Why],
        now: float,
        *,
        unread: Collection[str] = (),
        steady: float | None = None,
    ) -> Iterator[SeenGroup]:
        """One group after the other: the caller may do something else between two. It has to take all of them.

        `logs`: read after the groups; `written`: the time of the record at an offset, where it was looked up. `unread`:
        groups that may exist and could not be read: they keep their history.
        `steady`: `now` on a clock that is never set; None: on that of `now`. It measures what is between readings:
        a wall clock that is set back would make the last answer of a log the present one.
        """
        at = _Moment(now, now if steady is None else steady)
        for partition, log in logs.items():
            if isinstance(log, LogRange):
                self._of_logs.setdefault(partition, _LogHistory()).saw(log, at.steady)
        self.of_groups = {name: known for name, known in self.of_groups.items() if name in groups or name in unread}
        followed = {place for name in unread for place in self.of_groups.get(name, ())}
        for name, group in groups.items():
            known = self.of_groups.get(name, {})
            self.of_groups[name] = {
                each.place: known.get(each.place) or _CommitHistory(at.steady) for each in group.partitions
            }
            followed.update(self.of_groups[name])
            partitions = [self._partition(name, each, logs, written, at) for each in group.partitions]
            yield SeenGroup(name, group.members, tuple(partitions), group.foreign)
        # A topic that comes back has another log.
        followed -= {each.place for group in groups.values() for each in group.partitions if each.gone}
        self._of_logs = {partition: history for partition, history in self._of_logs.items() if partition in followed}

    def age_unknown(self, groups: Mapping[str, ReadGroup], logs: Logs) -> set[tuple[TopicPartition, int]]:
        """Partitions and offsets of records that were written before the first observation of their log."""
        found = set()
        for group in groups.values():
            for each in group.partitions:
                history, log = self._of_logs.get(each.place), logs.get(each.place)
                known = log if isinstance(log, LogRange) else history.last if history is not None else None
                if known is not None and each.stored is not None and each.stored < known.end:
                    first = max(each.stored, known.start)
                    if history is None or history.growth.reached(first) is None:
                        found.add((each.place, first))
        return found

    def _partition(
        self,
        group: str,
        each: ReadPartition,
        logs: Logs,
        written: Mapping[tuple[TopicPartition, int], float | Why],
        moment: _Moment,
    ) -> SeenPartition:
        partition, stored = each.place, each.stored
        log, known = logs.get(partition), (self._of_logs.get(partition) or _LogHistory())
        position: int | Why = Why(each.useless or "never committed")
        time: int | Why | None = None
        if stored is not None:
            position = stored
            at = written.get((partition, stored if known.last is None else max(stored, known.last.start)))
            time = round(1000 * at) if isinstance(at, float) else at
        # Without an answer the last one still says what the lag is at least, so what was behind goes on being it.
        facts = PartitionFacts(
            topic=each.topic,
            partition=each.partition,
            position=position,
            start=Measured(known.last.start, known.at) if known.last is not None else None,
            end=Measured(known.last.end, known.at) if known.last is not None else None,
            silent=Why("topic gone") if each.gone else log if isinstance(log, Why) else None,
            written=time,
        )
        found = partition_lag(facts, moment.steady, moment.wall, known.growth, fresh_for=0.0, stale_after=0.0)
        history = self.of_groups[group][partition]
        if stored is not None:
            history.saw(each.committed, stored, found.lag, moment.wall)
            history.progress.advance(stored, found.behind, moment.steady)
        lasting = each.unowned and history.unowned
        history.unowned = each.unowned
        return SeenPartition(
            topic=each.topic,
            partition=each.partition,
            owner=each.owner,
            unowned=each.unowned,
            lasting=lasting,
            stored=stored,
            useless=each.useless,
            found=found,
            standing=None if found.behind is None else history.progress.standing(found.behind, moment.steady),
            judgement=judge(history.commits, found.lag, moment.wall, known.ends, self._alone),
            commits=tuple(history.commits),
            seen=tuple(history.seen),
            client=each.client,
            committed=each.committed,
        )


class _Moment(NamedTuple):
    wall: float
    steady: float


class _LogHistory:
    """By the steady clock."""

    def __init__(self) -> None:
        self.growth = LogGrowth()
        self.ends: deque[int] = deque(maxlen=WINDOW)
        self.last: LogRange | None = None
        """What the leader answered last, at the time `at`."""
        self.at = 0.0

    def saw(self, log: LogRange, steady: float) -> None:
        self.growth.saw(log.end, steady)
        self.ends.append(log.end)
        self.last, self.at = log, steady


class _CommitHistory:
    def __init__(self, steady: float) -> None:
        self.commits: deque[Commit] = deque(maxlen=WINDOW)
        self.seen: deque[float] = deque(maxlen=WINDOW)
        self.progress = History(None, steady)
        self.unowned = False

    def saw(self, at: float | None, stored: int, lag: int | None, now: float) -> None:
        """The offset stored at the time `at`; None if that is unknown: then only another offset is another commit."""
        last = self.commits[-1] if self.commits else None
        if at is None:
            at = last.at if last is not None and last.offset == stored else now
        if last is None or (last.at, last.offset) != (at, stored):
            self.commits.append(Commit(at, stored, lag))
            self.seen.append(now)
