"""Prometheus metrics, made of a report and the counters at each scrape.

Unknown values have no sample. docs/monitoring.md has the metrics in place of the original's MBeans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)

from kzconsumer.counters import BOUNDS, Counters, Timing
from kzconsumer.lag.partition import STALE
from kzconsumer.lag.totals import VERDICTS
from kzconsumer.logs.setup import Trouble
from kzconsumer.sinks.runner import BatchCounters
from kzconsumer.status.partition_health import Kind, PartitionStatus
from kzconsumer.status.report import SESSION_STATES, Report, examination

PREFIX = "kzconsumer_"
Samples = Iterable[tuple[tuple[object, ...], float]]


def families(
    report: Report, counters: Counters, batches: BatchCounters, troubles: Iterable[Trouble]
) -> Iterator[Metric]:
    make = Families("group", report.group)
    yield from _of_member(make, report)
    yield from _of_partitions(make, report.partitions)
    yield from _of_work(make, counters)
    yield from _of_sink(make, batches)
    yield make.counter(
        "log_events",
        "Warnings and errors logged",
        ("level", "event"),
        (((each.level, each.event), each.count) for each in troubles),
    )


class Families:
    """Every sample has this label first, with this value."""

    def __init__(self, label: str, value: str) -> None:
        self._label = label
        self._value = value

    def gauge(self, name: str, about: str, labels: tuple[str, ...], samples: Samples) -> Metric:
        return self._filled(GaugeMetricFamily(PREFIX + name, about, labels=(self._label, *labels)), samples)

    def counter(self, name: str, about: str, labels: tuple[str, ...], samples: Samples) -> Metric:
        return self._filled(CounterMetricFamily(PREFIX + name, about, labels=(self._label, *labels)), samples)

    def histogram(self, name: str, about: str, label: str | None, timings: Mapping[Any, Timing]) -> Metric:
        labels = (self._label,) if label is None else (self._label, label)
        family = HistogramMetricFamily(PREFIX + name, about, labels=labels)
        for of, timing in timings.items():
            buckets, below = [], 0
            for bound, inside in zip((*BOUNDS, "+Inf"), timing.buckets, strict=True):
                below += inside
                buckets.append((str(bound), below))
            values = [self._value] if label is None else [self._value, str(of)]
            family.add_metric(values, buckets, sum_value=timing.total)
        return family

    def info(self, name: str, about: str, values: dict[str, str]) -> Metric:
        family = InfoMetricFamily(PREFIX + name, about, labels=(self._label,))
        family.add_metric([self._value], values)
        return family

    def states(self, name: str, about: str, states: dict[str, bool]) -> Metric:
        family = StateSetMetricFamily(PREFIX + name, about, labels=(self._label,))
        family.add_metric([self._value], states)
        return family

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
        for labels, value in samples:
            family.add_metric([self._value, *map(str, labels)], value)
        return family


def _of_member(make: Families, report: Report) -> Iterator[Metric]:
    yield make.info("build", "Version of kzconsumer", {"version": report.version})
    if report.member is not None:
        yield make.info("member", "Its id in the group", {"member": report.member})
    yield make.states(
        "zookeeper_session",
        "State of the session: records are delivered while it is held",
        {state: state == report.session for state in SESSION_STATES},
    )
    yield make.gauge("ready", "Whether the member is ready", (), [((), float(report.unready is None))])
    examined, total = examination(report), report.total
    yield make.states(
        "health", "What is known of the member's health", {each: each == examined.health for each in VERDICTS}
    )
    found = dict.fromkeys(each.id for each in examined.findings)
    yield make.gauge("finding", "1 for each kind of problem that is found", ("finding",), (((id,), 1) for id in found))
    yield make.gauge(
        "lag_at_least_records", "Sum of the lags, and of what unknown ones cannot be below", (), [((), total.at_least)]
    )
    yield make.gauge(
        "lag_unknown_partitions",
        "Owned partitions of which the lag is unknown",
        ("reason",),
        (((reason,), n) for reason, n in total.unknown.items()),
    )
    if report.members:
        yield make.gauge("members", "Members of the group, as last read", (), [((), len(report.members))])
    if report.generation is not None:
        yield make.gauge(
            "generation", "Number of rebalances that changed the owned partitions", (), [((), report.generation)]
        )
    for name, about, values in (
        ("chunks", "Fetched chunks in the queue", [queue.chunks for queue in report.queues]),
        ("bytes", "Bytes in the queue", [queue.bytes for queue in report.queues]),
        ("limit_bytes", "Maximum bytes in the queue", [queue.limit for queue in report.queues]),
    ):
        labels = [(queue.topic or "", queue.thread) for queue in report.queues]
        yield make.gauge(f"queue_{name}", about, ("topic", "thread"), zip(labels, values, strict=True))


_BY_KIND: tuple[tuple[str, str, Callable[[PartitionStatus], Mapping[Kind, float]]], ...] = (
    ("partition_offset", "The next offset to be fetched, handed out, processed, or stored", lambda p: p.offsets),
    ("partition_lag_records", "Offsets between that position and the end", lambda p: p.lag),
    ("partition_lag_seconds", "How long ago the next record was written", lambda p: p.lag_seconds),
)


def _present_end(partition: PartitionStatus) -> int | None:
    """Not one that was read long ago: by it the topic would seem to get no records."""
    age = partition.progress.age
    return partition.end if age is not None and age <= STALE else None


_BY_PARTITION: tuple[tuple[str, str, Callable[[PartitionStatus], float | None]], ...] = (
    ("partition_end_offset", "The high watermark, or the last stable offset", _present_end),
    ("partition_end_age_seconds", "Since that was read from a broker; 0 if just now", lambda p: p.progress.age),
    ("partition_paused", "Whether it is paused", lambda p: float(p.paused)),
    ("partition_standing_seconds", "Time for which it has been behind without progress", lambda p: p.standing),
)
_BY_STATE: tuple[tuple[str, str, str, Callable[[PartitionStatus], str | None]], ...] = (
    ("partition_stalled", "1 if stalled", "reason", lambda p: p.hindrance if p.stalled else None),
    ("partition_judgement", "1 for its status by Burrow's rules", "judgement", lambda p: p.judgement),
)


def _of_partitions(make: Families, partitions: list[PartitionStatus]) -> Iterator[Metric]:
    keys = ("topic", "partition")
    owned: dict[str, int] = {}
    for each in partitions:
        owned[each.topic] = owned.get(each.topic, 0) + 1
    yield make.gauge(
        "owned_partitions", "Partitions owned by this member", ("topic",), (((t,), n) for t, n in owned.items())
    )
    for name, about, offsets in _BY_KIND:
        samples = (((p.topic, p.partition, kind), n) for p in partitions for kind, n in offsets(p).items())
        yield make.gauge(name, about, (*keys, "kind"), samples)
    for name, about, value in _BY_PARTITION:
        known = (((p.topic, p.partition), n) for p in partitions if (n := value(p)) is not None)
        yield make.gauge(name, about, keys, known)
    for name, about, label, state in _BY_STATE:
        found = (((p.topic, p.partition, status), 1) for p in partitions if (status := state(p)) is not None)
        yield make.gauge(name, about, (*keys, label), found)
    yield make.gauge(
        "stalled_partitions", "Number of stalled partitions", (), [((), sum(each.stalled for each in partitions))]
    )
    fetch_lags = [each.lag["fetched"] for each in partitions if "fetched" in each.lag]
    if fetch_lags:
        yield make.gauge("max_fetch_lag_records", "Largest fetch lag of a partition", (), [((), max(fetch_lags))])


def _of_work(make: Families, counters: Counters) -> Iterator[Metric]:
    yield make.counter("records", "Records fetched", ("topic",), (((t,), n) for t, n in counters.records.items()))
    yield make.counter(
        "bytes", "Bytes fetched, as brokers sent them", ("topic",), (((t,), n) for t, n in counters.bytes.items())
    )
    fetches = counters.fetches
    yield make.counter(
        "fetch_bytes", "Bytes of records in responses", ("broker",), (((n,), each.bytes) for n, each in fetches.items())
    )
    yield make.histogram(
        "fetch_seconds", "Duration of fetch requests", "broker", {n: each.requests for n, each in fetches.items()}
    )
    yield make.histogram(
        "fetch_throttled_seconds",
        "Time by which a broker's quota held up a fetch request",
        "broker",
        {n: each.throttled for n, each in fetches.items()},
    )
    yield make.histogram(
        "decode_seconds", "Duration of decoding a response", "broker", {n: each.decoding for n, each in fetches.items()}
    )
    yield make.counter(
        "commits",
        "Offsets of partitions, by outcome of the commit",
        ("storage", "outcome"),
        counters.commits.offsets.items(),
    )
    yield make.counter(
        "rebalances", "Rebalances, by reason and outcome", ("reason", "outcome"), counters.rebalances.counts.items()
    )
    yield make.counter(
        "rejected_records",
        "Rejected records, by outcome",
        ("class", "outcome"),
        counters.rejected.items(),
    )
    yield make.histogram("rebalance_seconds", "Duration of rebalances", None, {None: counters.rebalances.seconds})


def _of_sink(make: Families, batches: BatchCounters) -> Iterator[Metric]:
    yield make.counter("sink_records", "Records written by the sink", (), [((), batches.records)])
    yield make.counter(
        "sink_unwritten_batches", "Batches dropped, or not written as a whole", (), [((), batches.unwritten)]
    )
    yield make.histogram("sink_seconds", "Duration of the stages of a batch", "stage", batches.stages)
