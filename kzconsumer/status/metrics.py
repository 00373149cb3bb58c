"""Prometheus metrics: a report and the counters as metric families, made at each scrape.

An unknown value has no sample, nor has a partition that is no longer owned. docs/monitoring.md lists all metrics, with
the MBeans of the original that they correspond to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
from kzconsumer.logs.troubles import Trouble
from kzconsumer.sinks.batch_status import BatchCounters
from kzconsumer.status.report import SESSION_STATES, Report
from kzconsumer.status.track import PartitionStatus

PREFIX = "kzconsumer_"
Samples = Iterable[tuple[tuple[object, ...], float]]


def families(
    report: Report, counters: Counters, batches: BatchCounters, troubles: Iterable[Trouble]
) -> Iterator[Metric]:
    """All metrics of a member."""
    make = _Families(report.group)
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


class _Families:
    """Every sample has the group as its first label."""

    def __init__(self, group: str) -> None:
        self._group = group

    def gauge(self, name: str, about: str, labels: tuple[str, ...], samples: Samples) -> Metric:
        return self._filled(GaugeMetricFamily(PREFIX + name, about, labels=("group", *labels)), samples)

    def counter(self, name: str, about: str, labels: tuple[str, ...], samples: Samples) -> Metric:
        return self._filled(CounterMetricFamily(PREFIX + name, about, labels=("group", *labels)), samples)

    def histogram(self, name: str, about: str, label: str | None, timings: Mapping[Any, Timing]) -> Metric:
        labels = ("group",) if label is None else ("group", label)
        family = HistogramMetricFamily(PREFIX + name, about, labels=labels)
        for of, timing in timings.items():
            buckets, below = [], 0
            for bound, inside in zip((*BOUNDS, "+Inf"), timing.buckets, strict=True):
                below += inside
                buckets.append((str(bound), below))
            values = [self._group] if label is None else [self._group, str(of)]
            family.add_metric(values, buckets, sum_value=timing.total)
        return family

    def info(self, name: str, about: str, values: dict[str, str]) -> Metric:
        family = InfoMetricFamily(PREFIX + name, about, labels=("group",))
        family.add_metric([self._group], values)
        return family

    def states(self, name: str, about: str, states: dict[str, bool]) -> Metric:
        family = StateSetMetricFamily(PREFIX + name, about, labels=("group",))
        family.add_metric([self._group], states)
        return family

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
        for labels, value in samples:
            family.add_metric([self._group, *map(str, labels)], value)
        return family


def _of_member(make: _Families, report: Report) -> Iterator[Metric]:
    yield make.info("build", "What runs", {"version": report.version})
    if report.member is not None:
        yield make.info("member", "Its id in the group", {"member": report.member})
    yield make.states(
        "zookeeper_session",
        "What the session is worth: records are handed out while it is held",
        {state: state == report.session for state in SESSION_STATES},
    )
    yield make.gauge("ready", "Whether it does its part", (), [((), float(report.unready is None))])
    if report.members:
        yield make.gauge("members", "Members of the group, as last read", (), [((), len(report.members))])
    if report.generation is not None:
        yield make.gauge("generation", "Counts changes of what is ours", (), [((), report.generation)])
    for name, about, values in (
        ("chunks", "Fetched chunks that wait", [queue.chunks for queue in report.queues]),
        ("bytes", "Bytes of what is fetched and not taken", [queue.bytes for queue in report.queues]),
        ("limit_bytes", "Bytes that a queue takes", [queue.limit for queue in report.queues]),
    ):
        labels = [(queue.topic or "", queue.thread) for queue in report.queues]
        yield make.gauge(f"queue_{name}", about, ("topic", "thread"), zip(labels, values, strict=True))


def _of_partitions(make: _Families, partitions: list[PartitionStatus]) -> Iterator[Metric]:
    keys = ("topic", "partition")
    owned: dict[str, int] = {}
    for each in partitions:
        owned[each.topic] = owned.get(each.topic, 0) + 1
    yield make.gauge("owned_partitions", "Partitions that are ours", ("topic",), (((t,), n) for t, n in owned.items()))
    yield make.gauge(
        "partition_offset",
        "The next offset to be fetched, handed out, worked on, or stored as such",
        (*keys, "kind"),
        (((p.topic, p.partition, kind), offset) for p in partitions for kind, offset in p.offsets.items()),
    )
    yield make.gauge(
        "partition_end_offset",
        "Where what can be read ends",
        keys,
        (((p.topic, p.partition), p.end) for p in partitions if p.end is not None),
    )
    yield make.gauge(
        "partition_lag_records",
        "Offsets between there and the end",
        (*keys, "kind"),
        (((p.topic, p.partition, kind), lag) for p in partitions for kind, lag in p.lag.items()),
    )
    yield make.gauge(
        "partition_lag_seconds",
        "How long ago the next record was written",
        (*keys, "kind"),
        (((p.topic, p.partition, kind), lag) for p in partitions for kind, lag in p.lag_seconds.items()),
    )
    yield make.gauge(
        "partition_paused",
        "Whether it is paused",
        keys,
        (((p.topic, p.partition), float(p.paused)) for p in partitions),
    )
    yield make.gauge(
        "partition_standing_seconds",
        "For how long it has been behind and not advanced",
        keys,
        (((p.topic, p.partition), p.standing) for p in partitions),
    )
    yield make.gauge(
        "partition_stalled",
        "1 for one that has been so for too long",
        (*keys, "reason"),
        (((p.topic, p.partition, p.hindrance), 1) for p in partitions if p.stalled),
    )
    yield make.gauge(
        "partition_judgement",
        "1 for what Burrow's rules say of it",
        (*keys, "judgement"),
        (((p.topic, p.partition, p.judgement), 1) for p in partitions if p.judgement is not None),
    )
    yield make.gauge("stalled_partitions", "How many are stalled", (), [((), sum(each.stalled for each in partitions))])
    fetch_lags = [each.lag["fetched"] for each in partitions if "fetched" in each.lag]
    if fetch_lags:
        yield make.gauge("max_fetch_lag_records", "The largest of what is not fetched yet", (), [((), max(fetch_lags))])


def _of_work(make: _Families, counters: Counters) -> Iterator[Metric]:
    yield make.counter("records", "Records fetched", ("topic",), (((t,), n) for t, n in counters.records.items()))
    yield make.counter(
        "bytes", "Bytes fetched, as brokers sent them", ("topic",), (((t,), n) for t, n in counters.bytes.items())
    )
    fetches = counters.fetches
    yield make.counter(
        "fetch_bytes", "Bytes of records in responses", ("broker",), (((n,), each.bytes) for n, each in fetches.items())
    )
    yield make.histogram(
        "fetch_seconds", "From a request to its answer", "broker", {n: each.requests for n, each in fetches.items()}
    )
    yield make.histogram(
        "decode_seconds", "Making columns of a response", "broker", {n: each.decoding for n, each in fetches.items()}
    )
    yield make.counter(
        "commits",
        "Offsets of partitions, by what became of storing them",
        ("storage", "outcome"),
        counters.commits.offsets.items(),
    )
    yield make.counter(
        "rebalances", "Attempts to own what should be ours", ("reason", "outcome"), counters.rebalances.counts.items()
    )
    yield make.counter(
        "rejected_records",
        "Records rejected, by what became of them",
        ("class", "outcome"),
        counters.rejected.items(),
    )
    yield make.histogram("rebalance_seconds", "What they took", None, {None: counters.rebalances.seconds})


def _of_sink(make: _Families, batches: BatchCounters) -> Iterator[Metric]:
    yield make.counter("sink_records", "Records that the sink has written", (), [((), batches.records)])
    yield make.counter(
        "sink_unwritten_batches", "Batches given up, or not written as a whole", (), [((), batches.unwritten)]
    )
    yield make.histogram("sink_seconds", "Stages of a batch", "stage", batches.stages)
