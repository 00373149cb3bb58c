"""The metrics of a report, read back by parsers of both formats; and that rules and dashboards use existing ones."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kzconsumer.counters import BOUNDS, Counters, Rebalance
from kzconsumer.lag.partition import STALE
from kzconsumer.logs.setup import Trouble
from kzconsumer.offsets.progress import Position
from kzconsumer.sinks.runner import BatchCounters
from kzconsumer.status.metrics import families
from kzconsumer.status.partition_health import PartitionStatus, Track
from kzconsumer.status.report import Queue, Report
from tests.support.programs import PROMTOOL, need

MONITORING = Path(__file__).parents[3] / "monitoring"
AT = Position(
    topic="t", partition=3, thread="m-0", fetched=10, consumed=10, processed=5, committed=4, high_watermark=20, leader=1
)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def test_a_hole_at_the_end_of_a_log_is_no_stall() -> None:
    """Compaction has removed the last records: there is nothing to read, nor to commit, until the log grows."""
    behind = Position("t", 3, "m-0", 12, 12, 12, 12, 20)
    for hole, end, state, judgement in (
        (None, 20, "stalled", "STALL"),
        (20, 20, "caught up", "OK"),
        (20, 21, "stalled", "STALL"),
    ):
        at = msgspec.structs.replace(behind, hole_until=hole, high_watermark=end)
        track = Track(at, 0.0)
        for second in range(0, 100, 5):
            at = msgspec.structs.replace(at, high_watermark_at=float(second))
            track.look(at, float(second), asked=None, committed=True)
        found = track.status(at, 100.0, 100.0, lease_held=True, stalled_after=60.0)
        assert (found.state, found.judgement, found.stalled) == (state, judgement, state == "stalled")
        assert (found.progress.lag, at.left) == (end - 12, 0 if state == "caught up" else end - 12)


def status(position: Position, time: float = 100.0) -> PartitionStatus:
    track = Track(position, 0.0)
    for second in range(4):
        position = msgspec.structs.replace(position, high_watermark_at=float(second))
        track.look(position, float(second), asked=None, committed=True)
    return track.status(msgspec.structs.replace(position, high_watermark_at=time), time, time, True, 60.0)


def report(*positions: Position, time: float = 100.0) -> Report:
    return Report(
        version="1.2.3",
        started=0.0,
        cluster="zk1:2181",
        group='a "group"\\',
        member="m",
        state="consuming",
        joined=True,
        alive=None,
        session="held",
        generation=7,
        members=[],
        assigned=[],
        partitions=[status(each, time) for each in positions],
        blocked=[],
        unreadable=False,
        commits_fail=None,
        rebalances_fail=None,
        queues=[Queue(None, 0, 2, 300, 1000)],
        batch=None,
        batches=[],
        sink={},
    )


def output(of: Report, counters: Counters | None = None) -> list[Metric]:
    troubles = [Trouble("error", "commit failed", 3, 0.0, 1.0, "why")]
    return list(families(of, counters or worked(), BatchCounters(), troubles))


def worked() -> Counters:
    counters = Counters()
    for seconds in (0.001, 0.003, 99.0):
        counters.of_broker(1).requests.add(seconds)
    counters.of_broker(1).throttled.add(2.0)
    counters.records["t"] += 42
    counters.bytes["t"] += 4200
    counters.commits.offsets["zookeeper", "stored"] += 5
    for reason in ("members", "owner of t-3", "owner of t-4"):
        counters.rebalances.add(Rebalance(0.0, 0.2, (reason,), "done", 1))
    return counters


class Given(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def as_openmetrics(registry: CollectorRegistry) -> list[Sample]:
    text = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    return [s for family in parse_openmetrics(text) for s in family.samples]  # type: ignore[no-untyped-call]


def as_text(registry: CollectorRegistry) -> list[Sample]:
    return [s for family in parse_text(generate_latest(registry).decode()) for s in family.samples]


def read(metrics: list[Metric]) -> Samples:
    """As both parsers read it; any difference fails."""
    registry = CollectorRegistry()
    registry.register(Given(metrics))
    parsed: list[Samples] = []
    for found in (as_openmetrics(registry), as_text(registry)):
        keys = [(s.name, frozenset(s.labels.items())) for s in found]
        assert len(keys) == len(set(keys)), "a sample twice"
        parsed.append({key: s.value for key, s in zip(keys, found, strict=True)})
    assert parsed[0] == parsed[1]
    return {(name, labels - {("group", 'a "group"\\')}): value for (name, labels), value in parsed[0].items()}


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"kzconsumer_{name}", frozenset(labels.items())))


def test_every_sample_has_its_group_and_is_parsed() -> None:
    samples = read(output(report(AT)))
    assert not any("group" in dict(labels) for _, labels in samples)
    lags = {
        kind: value(samples, "partition_lag_records", topic="t", partition="3", kind=kind) for kind in status(AT).lag
    }
    assert lags == {"fetched": 10, "consumed": 10, "processed": 15, "committed": 16}
    assert value(samples, "partition_stalled", topic="t", partition="3", reason="sink slow") == 1
    assert value(samples, "max_fetch_lag_records") == 10
    assert value(samples, "queue_bytes", topic="", thread="0") == 300
    assert value(samples, "records_total", topic="t") == 42
    assert value(samples, "fetch_throttled_seconds_sum", broker="1") == 2
    assert value(samples, "rebalances_total", reason="owner", outcome="done") == 2
    assert value(samples, "log_events_total", level="error", event="commit failed") == 3


def test_only_a_long_standstill_is_reported_as_stalled() -> None:
    samples = read(output(report(AT, time=59.0)))
    assert value(samples, "partition_standing_seconds", topic="t", partition="3") == 59
    assert value(samples, "stalled_partitions") == 0
    assert not any(name == "kzconsumer_partition_stalled" for name, _ in samples)


def test_buckets_are_cumulative() -> None:
    samples = read(output(report()))
    buckets = [value(samples, "fetch_seconds_bucket", broker="1", le=str(bound)) for bound in (*BOUNDS, "+Inf")]
    assert buckets == [1, *[2] * (len(BOUNDS) - 1), 3]
    assert value(samples, "fetch_seconds_count", broker="1") == 3


def test_unknown_values_are_absent() -> None:
    unknown = msgspec.structs.replace(AT, fetched=None, committed=None, high_watermark=None)
    samples = read(output(report(unknown)))
    names = {name for name, _ in samples}
    assert not names & {f"kzconsumer_partition_{n}" for n in ("lag_records", "lag_seconds", "end_offset", "judgement")}
    assert "kzconsumer_max_fetch_lag_records" not in names
    kinds = {dict(labels)["kind"] for name, labels in samples if name == "kzconsumer_partition_offset"}
    assert kinds == {"consumed", "processed"}
    not_joined = msgspec.structs.replace(report(), member=None, generation=None)
    names = {name for name, _ in read(output(not_joined))}
    assert not names & {"kzconsumer_member_info", "kzconsumer_generation", "kzconsumer_members"}


@pytest.mark.parametrize(("age", "end"), [(0.0, 20), (STALE, 20), (STALE + 1, None)])
def test_an_end_that_was_read_long_ago_is_absent(age: float, end: int | None) -> None:
    known = status(AT)
    stale = msgspec.structs.replace(known, progress=msgspec.structs.replace(known.progress, age=age))
    samples = read(output(msgspec.structs.replace(report(), partitions=[stale])))
    assert value(samples, "partition_end_offset", topic="t", partition="3") == end
    assert value(samples, "partition_end_age_seconds", topic="t", partition="3") == age


def test_a_revoked_partition_has_no_series() -> None:
    assert any(("partition", "3") in labels for _, labels in read(output(report(AT))))
    assert not any(("partition", "3") in labels for _, labels in read(output(report())))


def names_reported() -> set[str]:
    """All that exist: for a partition of which everything is known."""
    known = msgspec.structs.replace(AT, processed=20, committed=20)
    unread = msgspec.structs.replace(AT, partition=5, high_watermark=None)
    of = msgspec.structs.replace(report(AT, msgspec.structs.replace(known, partition=4), unread), members=[])
    samples = read(output(of))
    return {name for name, _ in samples} | {"kzconsumer_members"} | {f"kzconsumer_sink_seconds_{p}" for p in SUFFIXES}


SUFFIXES = ("bucket", "count", "sum")
_NAME = re.compile(r"\bkzconsumer_[a-z_]+")


def expressions() -> list[tuple[str, str]]:
    """File and expression, from the rules and the dashboard."""
    rules = (MONITORING / "alerts.yml").read_text()
    board = json.loads((MONITORING / "dashboard.json").read_text())
    asked = [("dashboard.json", target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]
    asked += [("dashboard.json", each["query"]) for each in board["templating"]["list"] if each["type"] == "query"]
    return [*asked, ("alerts.yml", re.sub(r"(?m)^ *#.*$", "", rules))]


def test_rules_and_dashboard_use_existing_metrics() -> None:
    known = names_reported()
    unknown = {(file, name) for file, text in expressions() for name in _NAME.findall(text) if name not in known}
    assert unknown == set()


#: Metrics that the dashboard leaves out, and why.
LEFT_OUT = {
    "build_info": "no figure",
    "member_info": "no figure",
    "bytes": "fetch_bytes is shown",
    "generation": "rebalances are shown",
    "max_fetch_lag_records": "partition_lag_records of kind fetched is shown",
    "partition_end_offset": "records per second are shown",
    "partition_judgement": "findings are shown",
    "partition_offset": "records per second are shown",
    "partition_paused": "stalled partitions are shown with their reason",
    "partition_standing_seconds": "stalled partitions are shown",
    "queue_chunks": "queue_bytes is shown",
}


def test_every_metric_is_in_the_dashboard_or_left_out_for_a_reason_and_on_the_page() -> None:
    page = (MONITORING.parent / "docs" / "monitoring.md").read_text()
    reported = {re.sub(r"^kzconsumer_|_(bucket|count|sum|total)$", "", name) for name in names_reported()}
    of_board = "".join(text for file, text in expressions() if file == "dashboard.json")
    shown = {name for name in reported if re.search(rf"kzconsumer_{name}(_bucket|_sum|_total)?\b", of_board)}
    assert shown | LEFT_OUT.keys() == reported
    assert shown & LEFT_OUT.keys() == set()
    assert {name for name in reported if not re.search(rf"`{name}(_total)?`", page)} == set()


def test_the_page_gives_existing_metrics_for_the_beans_of_the_original() -> None:
    page = (MONITORING.parent / "docs" / "monitoring.md").read_text()
    rows = re.findall(r"(?m)^\| `[A-Z][^|]+\| (`[^|]+) \|$", page)
    named = {name for row in rows for name in re.findall(r"`([a-z]+_[a-z_]+)`", row)}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names_reported()}
    assert len(named) > 10
    assert {f"kzconsumer_{name}" for name in named} - families == set()


@pytest.mark.parametrize("file", ["dashboard.json", "exporter-dashboard.json"])
def test_the_dashboard_is_valid_for_grafana(file: str) -> None:
    board: dict[str, Any] = json.loads((MONITORING / file).read_text())
    assert board["schemaVersion"] >= 36
    assert board["id"] is None
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize(
    "words",
    [
        ["check", "rules", "alerts.yml", "exporter-alerts.yml"],
        ["test", "rules", "alerts_test.yml", "exporter-alerts_test.yml"],
    ],
)
def test_the_rules_are_checked_by_promtool(words: list[str]) -> None:
    done = subprocess.run(
        [need(PROMTOOL), *words], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
