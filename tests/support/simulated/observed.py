"""A member of a simulated group with the observer of its daemon: reports in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest import mock

from kzconsumer.lag.partition import FRESH
from kzconsumer.lag.totals import behind_text
from kzconsumer.model import TopicPartition
from kzconsumer.sinks.runner import LAST, SinkRunner
from kzconsumer.status import observer as observing
from kzconsumer.status.health import Health
from kzconsumer.status.metrics import families
from kzconsumer.status.observer import Observer
from kzconsumer.status.report import Report
from kzconsumer.status.status_server import DOCUMENTS
from tests.support.members import sessions_of
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.member import Member
from tests.support.simulated.partition_logs import TIMESTAMP, PartitionLogs
from tests.support.simulated.virtual_time import BEGINNING, World

WRITTEN = TIMESTAMP / 1000
"""The timestamp of all simulated records."""


class WallClock:
    """In place of the module `time`: the world began when its records were written."""

    def __init__(self, world: World) -> None:
        self._world = world

    def time(self) -> float:
        return WRITTEN + self._world.now - BEGINNING


class Observed:
    """One member of a simulated group with two partitions and its observer."""

    def __init__(self, group: SimulatedGroup, member: Member, observer: Observer) -> None:
        self.group, self.member, self.observer = group, member, observer

    def reports(self, seconds: int) -> Iterator[Report]:
        """One in each second; of every one of them the figures agree."""
        for _ in range(seconds):
            self.group.world.pass_time(1.0)
            report = self.observer.report()
            assert_agreement(self.observer, report)
            yield report


def assert_agreement(observer: Observer, report: Report) -> None:
    """Of its documents, metrics and status line; and 0 is what was measured a moment ago."""
    status = cast(dict[str, Any], DOCUMENTS["status"](observer, report))
    rows = [each.progress for each in report.partitions]
    lags = [each.lag for each in rows if each.lag is not None]
    unknown = Counter(each.why.reason for each in rows if each.why is not None and not each.gone)
    assert status["lag"] == (None if unknown else sum(lags))
    assert status["total"].unknown == unknown
    metrics: dict[str, dict[tuple[str, ...], float]] = {}
    for family in families(report, observer.counters, observer.batches, ()):
        for sample in family.samples:
            metrics.setdefault(sample.name, {})[tuple(sample.labels.values())[1:]] = sample.value
    assert metrics["kzconsumer_lag_at_least_records"] == {(): status["total"].at_least}
    assert metrics.get("kzconsumer_lag_unknown_partitions", {}) == {(reason,): n for reason, n in unknown.items()}
    assert metrics["kzconsumer_health"][status["health"],] == 1
    lag_of, offset_of = (metrics.get(f"kzconsumer_partition_{name}", {}) for name in ("lag_records", "offset"))
    for each in report.partitions:
        where = each.topic, str(each.partition)
        assert lag_of.get((*where, "processed")) == each.progress.lag
        assert {kind: n for (*at, kind), n in offset_of.items() if (*at,) == where} == each.offsets
    fetched = [each.lag["fetched"] for each in report.partitions if "fetched" in each.lag]
    assert list(metrics.get("kzconsumer_max_fetch_lag_records", {}).values()) == ([max(fetched)] if fetched else [])
    assert metrics["kzconsumer_stalled_partitions"] == {(): sum(each.stalled for each in report.partitions)}
    owned = Counter((each.topic,) for each in report.partitions)
    assert metrics.get("kzconsumer_owned_partitions", {}) == owned
    if report.joined and report.session == "held" and rows:
        assert behind_text(status["total"]) in report.state
    assert [each.lag.get("processed") for each in report.partitions] == [each.lag for each in rows]
    assert [each.lag_seconds.get("processed") for each in report.partitions] == [each.seconds for each in rows]
    for each in report.partitions:
        if each.progress.lag == 0:
            assert (each.progress.age or 0) <= FRESH
        assert not (each.stalled and each.judgement == "OK" and each.progress.behind is None)
    ended, batches = list(observer.batches.last), observer.batches
    times = [each.ended or 0.0 for each in ended]
    assert all(times)
    assert times == sorted(times)
    assert {each.stage for each in ended} <= {"done"}
    if len(ended) < LAST:
        assert batches.records == sum(each.records for each in ended if each.written)
        assert batches.unwritten == sum(not each.written and each.records > 0 for each in ended)


def assert_truth(
    report: Report,
    age: float,
    logs: PartitionLogs,
    done: Callable[[TopicPartition], int],
    stored: Callable[[TopicPartition], int],
) -> None:
    """What it says of partitions that nothing happens to: nothing is unknown, and all is as the brokers have it.

    `age`: seconds since the records were written. Not of a log whose last records an election has cut off behind others
    that compaction removed: who reads without end waits there for the next record.
    """
    for each in report.partitions:
        partition = TopicPartition(each.topic, each.partition)
        end = logs.end(partition)
        if stored(partition) < logs.logs[partition].first_from(stored(partition)) == end:
            continue
        first = max(done(partition), logs.logs[partition].start)
        seen = {kind: each.offsets.get(kind) for kind in ("processed", "committed")}
        assert seen == {"processed": done(partition), "committed": stored(partition)}, each
        assert (each.end, each.progress.lag, each.progress.behind) == (end, end - first, first < end), each
        seconds = each.progress.seconds
        assert seconds is not None, each
        assert abs(seconds - (age if first < end else 0.0)) < 1.0, each
        assert each.leader == logs.leaders[partition], each
        assert each.stalled is False or first < end, each


@contextmanager
def observed(
    pace: float = 0.0,
    silent_logs: bool = True,
    before: Callable[[SimulatedGroup, Member], None] = lambda group, member: None,
    settled: float = 30.0,
    **more: Any,
) -> Iterator[Observed]:
    """A member that processes each record in `pace` seconds. `before`: what happens before the first look;
    `settled`: seconds after it; `more`: fields of `Scene`."""
    with simulated_group(1, **more) as group, mock.patch.object(observing, "time", WallClock(group.world)):
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, pace, in_batches=False)
        assert group.world.pass_time(10, lambda: len(member.owned) == 2)
        if silent_logs:
            group.logs.stop()
        before(group, member)
        assert member.connector is not None
        sessions = sessions_of(member.connector)
        health = Health(sessions.lease, 1e9, 1e9)
        health.phase, health.sessions = "", sessions
        observer = Observer(lambda: sessions.settings, health, sessions.lease)
        observer.begin(sessions, cast(SinkRunner, None))
        tasks: list[asyncio.Task[None]] = []
        member.process.call_soon(lambda: tasks.append(member.process.create_task(observer.run())))
        group.world.pass_time(settled)
        yield Observed(group, member, observer)
        member.process.call_soon(tasks[0].cancel)
        group.world.pass_time(1.0)
