"""Prometheus metrics of an exporter, made of its last reading at each scrape. Unknown values have no sample."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from kzconsumer.status.metrics import Families
from kzconsumer_tools.exporter.burrow import group_status
from kzconsumer_tools.exporter.exporter import Exporter, Reading
from kzconsumer_tools.exporter.pictures import SeenPartition


def families(exporter: Exporter) -> Iterator[Metric]:
    make = Families("cluster", exporter.cluster)
    reading = exporter.present
    yield make.gauge("exporter_up", "Whether the groups were read lately", (), [((), float(reading is not None))])
    complete = reading is not None and exporter.failure is None
    yield make.gauge("exporter_complete", "Whether the last reading was complete", (), [((), float(complete))])
    if reading is None:
        return
    yield make.gauge("exporter_read_timestamp_seconds", "Time of the last reading", (), [((), reading.at)])
    yield make.gauge("exporter_read_seconds", "Duration of the last reading", (), [((), reading.took)])
    yield from _of_groups(make, exporter, reading)
    yield from _of_partitions(make, exporter, reading)
    ends = [((*partition,), float(end)) for partition, end in reading.ends.items()]
    yield make.gauge("topic_end_offset", "End of the log", ("topic", "partition"), ends)


def stalled(exporter: Exporter, each: SeenPartition) -> bool:
    return each.standing is not None and each.standing >= exporter.stalled_after


def _of_groups(make: Families, exporter: Exporter, reading: Reading) -> Iterator[Metric]:
    groups = reading.groups.values()
    sums = {group.group: group.total for group in groups}
    exact = "; none if one is unknown"
    for name, about, value in (
        ("members", "Registered members", lambda group, _: group.members),
        ("lag_records", f"Sum over the partitions{exact}", lambda _, sums: sums.lag),
        (
            "lag_records_at_least",
            "Sum of the lags, and of what unknown ones cannot be below",
            lambda _, sums: sums.at_least,
        ),
        (
            "lag_seconds",
            f"Age of the oldest record that is next{exact}",
            lambda _, sums: sums.lag_seconds,
        ),
        ("lag_seconds_at_least", "The oldest of the ages that are known", lambda _, sums: sums.seconds),
        ("lost_records", "Offsets that were deleted before they were read", lambda _, sums: sums.lost),
        ("gone_offsets", "Stored offsets of partitions that do not exist", lambda _, sums: sums.gone),
        (
            "unowned_partitions",
            "Partitions that a member subscribes to and none owns",
            lambda group, _: sum(each.unowned for each in group.partitions),
        ),
        (
            "stalled_partitions",
            "Partitions that are behind and do not advance",
            lambda group, _: sum(stalled(exporter, each) for each in group.partitions),
        ),
    ):
        of = [((group.group,), value(group, sums[group.group])) for group in groups]
        found = [(at, float(figure)) for at, figure in of if figure is not None]
        yield make.gauge(f"group_{name}", about, ("group",), found)
    unknown = [((group, reason), float(n)) for group, of in sums.items() for reason, n in of.unknown.items()]
    yield make.gauge("group_unknown_partitions", "Partitions whose lag is unknown", ("group", "reason"), unknown)
    unreadable = [((group, why), 1.0) for group, why in reading.unreadable.items()]
    yield make.gauge("group_unreadable", "1 for a group that cannot be read", ("group", "reason"), unreadable)
    statuses = [((group.group, group_status(group)), 1.0) for group in groups]
    yield make.gauge("group_status", "1 for Burrow's status of the group", ("group", "status"), statuses)


def _of_partitions(make: Families, exporter: Exporter, reading: Reading) -> Iterator[Metric]:
    labels = ("group", "topic", "partition")
    seen = [((name, each.topic, each.partition), each) for name, of in reading.groups.items() for each in of.partitions]
    for name, about, value in (
        ("offset", "Stored offset", lambda each: each.stored),
        ("lag_records", "From the stored offset to the end of the log", lambda each: each.lag),
        ("lag_seconds", "Age of the next record", lambda each: each.seconds),
        ("unowned", "1 if a member subscribes to it and none owns it", lambda each: 1 if each.unowned else None),
        ("stalled", "1 if it is behind and does not advance", lambda each: 1 if stalled(exporter, each) else None),
    ):
        found = [(at, float(figure)) for at, each in seen if (figure := value(each)) is not None]
        yield make.gauge(f"group_partition_{name}", about, labels, found)
    owned = [((*at, each.owner), 1.0) for at, each in seen if each.owner is not None]
    yield make.gauge("group_partition_owner", "1 for the owner", (*labels, "owner"), owned)
    judged = [((*at, each.judgement), 1.0) for at, each in seen if each.judgement is not None]
    yield make.gauge("group_partition_judgement", "1 for Burrow's judgement", (*labels, "judgement"), judged)
