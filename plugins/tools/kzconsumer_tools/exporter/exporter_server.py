"""Burrow's v3 paths and Prometheus metrics of an exporter, over HTTP."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client.core import Metric

from kzconsumer.status.metrics import Families
from kzconsumer.status.web_server import Handler, application, json_response, metrics_in_thread, served
from kzconsumer_tools.exporter import burrow
from kzconsumer_tools.exporter.exporter import Exporter, ExporterReading
from kzconsumer_tools.exporter.seen_groups import SeenPartition


def families(exporter: Exporter) -> Iterator[Metric]:
    """Prometheus metrics of an exporter, made of its last reading at each scrape. Unknown values have no sample."""
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


def _of_groups(make: Families, exporter: Exporter, reading: ExporterReading) -> Iterator[Metric]:
    groups = reading.groups.values()
    sums = {group.group: group.total for group in groups}
    exact = "; none if one is unknown"
    for name, about, value in (
        ("members", "Registered members", lambda group, _: group.members),
        ("lag_records", f"Sum over the partitions{exact}", lambda _, sums: None if sums.empty else sums.lag),
        (
            "lag_records_at_least",
            "Sum of the lags, and of what unknown ones cannot be below",
            lambda _, sums: sums.at_least,
        ),
        (
            "lag_seconds",
            f"Age of the oldest record that is next{exact}",
            lambda _, sums: None if sums.empty else sums.lag_seconds,
        ),
        (
            "lag_seconds_at_least",
            "The oldest of the ages that are known",
            lambda _, sums: None if sums.empty else sums.seconds,
        ),
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
    statuses = [((group.group, burrow.group_status(group)), 1.0) for group in groups]
    yield make.gauge("group_status", "1 for Burrow's status of the group", ("group", "status"), statuses)


def _of_partitions(make: Families, exporter: Exporter, reading: ExporterReading) -> Iterator[Metric]:
    labels = ("group", "topic", "partition")
    seen = [((name, each.topic, each.partition), each) for name, of in reading.groups.items() for each in of.partitions]
    for name, about, value in (
        ("offset", "Stored offset", lambda each: each.stored),
        ("commit_timestamp_seconds", "When it was stored, in seconds since 1970", lambda each: each.committed),
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


#: Without data of groups, and open without the token.
OPEN = ("/burrow/admin", "/burrow/admin/ready")

_EXPORTER = web.AppKey("exporter", Exporter)


@asynccontextmanager
async def serving(exporter: Exporter, listen: str, token: bytes | None = None) -> AsyncIterator[None]:
    """Read and serve at `listen` during the block. Raises CannotListenError."""
    app = application(ROUTES, token, OPEN, lambda: families(exporter))
    app[_EXPORTER] = exporter
    async with served(app, listen, "--listen") as tasks:
        tasks.start_soon(exporter.run)
        yield


async def _alive(_: web.Request) -> web.Response:
    return web.Response(text="GOOD")


async def _ready(request: web.Request) -> web.Response:
    ready = request.app[_EXPORTER].present is not None
    return web.Response(text="READY" if ready else "STARTING", status=200 if ready else 503)


def _answer(
    message: str,
    field: str,
    make: Callable[[Exporter, ExporterReading, dict[str, str]], Any],
    missing: str = "cluster not found",
) -> Handler:
    """`make` returns None for what does not exist, and is not called without a present reading: 503."""

    async def answer(request: web.Request) -> web.Response:
        exporter, names = request.app[_EXPORTER], dict(request.match_info)
        about = {"url": request.path, "host": socket.gethostname()}
        reading = exporter.present
        if reading is None:
            why = f"the cluster was not read lately: {exporter.absence}"
            return json_response({"error": True, "message": why, "request": about}, 503)
        known = names.get("cluster", exporter.cluster) == exporter.cluster
        found = make(exporter, reading, names) if known or field == "status" else None
        if found is None:
            return json_response({"error": True, "message": missing, "request": about}, 404)
        absent = field == "status" and found["status"] == "NOTFOUND"
        body = {"error": False, "message": message, field: found, "request": about}
        return json_response(body, 404 if absent else 200)

    return answer


def _status(whole: bool) -> Callable[[Exporter, ExporterReading, dict[str, str]], Any]:
    def make(exporter: Exporter, reading: ExporterReading, names: dict[str, str]) -> Any:
        group = reading.groups.get(names["group"]) if names["cluster"] == exporter.cluster else None
        return burrow.status(names["cluster"], names["group"], group, whole=whole)

    return make


def _topic(_: Exporter, reading: ExporterReading, names: dict[str, str]) -> Any:
    topic = names["topic"]
    return burrow.topic_offsets(reading.ends, topic, reading.topics[topic]) if topic in reading.topics else None


def _consumer(_: Exporter, reading: ExporterReading, names: dict[str, str]) -> Any:
    group = reading.groups.get(names["group"])
    return burrow.consumer(group) if group is not None else None


def _cluster(exporter: Exporter, _: ExporterReading, __: dict[str, str]) -> Any:
    interval = round(exporter.interval)
    servers = exporter.connect.partition("/")[0].split(",")
    return {"class-name": "kafka", "servers": servers, "topic-refresh": interval, "offset-refresh": interval}


# Without an expression braces would not match.
_AT = "/v3/kafka/{cluster:[^/]+}"
_TOPIC = _AT + "/topic/{topic:[^/]+}"
_CONSUMER = _AT + "/consumer/{group:[^/]+}"
_NO_GROUP, _NO_TOPIC = "cluster or consumer not found", "cluster or topic not found"
ROUTES: dict[str, Handler] = {
    # Encoding those of ten thousand groups takes seconds, in which the session would expire. A reading does not change.
    "/metrics": metrics_in_thread,
    "/burrow/admin": _alive,
    "/burrow/admin/ready": _ready,
    "/v3/kafka": _answer("cluster list returned", "clusters", lambda exporter, _, __: [exporter.cluster]),
    _AT: _answer("cluster module detail returned", "module", _cluster, "cluster module not found"),
    _AT + "/topic": _answer("topic list returned", "topics", lambda _, reading, __: sorted(reading.topics)),
    _TOPIC: _answer("topic offsets returned", "offsets", _topic, _NO_TOPIC),
    _TOPIC + "/consumers": _answer(
        "consumers of topic returned",
        "consumers",
        lambda _, reading, names: burrow.consumers_of(reading.groups, names["topic"]),
    ),
    _AT + "/consumer": _answer("consumer list returned", "consumers", lambda _, reading, __: sorted(reading.groups)),
    _CONSUMER: _answer("consumer detail returned", "topics", _consumer, _NO_GROUP),
    _CONSUMER + "/status": _answer("consumer status returned", "status", _status(False)),
    _CONSUMER + "/lag": _answer("consumer status returned", "status", _status(True)),
}
