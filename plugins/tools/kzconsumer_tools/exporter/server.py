"""Burrow's v3 paths and Prometheus metrics of an exporter, over HTTP."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from kzconsumer.settings.sections import StatusSettings
from kzconsumer.status.access import load_token
from kzconsumer.status.web_server import Handler, application, json_response, metrics_in_thread, served
from kzconsumer_tools.exporter import burrow
from kzconsumer_tools.exporter.exporter import Exporter, Reading
from kzconsumer_tools.exporter.metrics import families

#: Without data of groups, and open without the token.
OPEN = ("/burrow/admin", "/burrow/admin/ready")

_EXPORTER = web.AppKey("exporter", Exporter)


@asynccontextmanager
async def serving(exporter: Exporter, status: StatusSettings, source: str) -> AsyncIterator[None]:
    """Read and serve at `[status] listen` during the block. Raises ConfigError for the token, CannotListenError."""
    assert status.listen is not None
    app = application(ROUTES, load_token(status, source), OPEN, lambda: families(exporter))
    app[_EXPORTER] = exporter
    async with served(app, status.listen, source) as tasks:
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
    make: Callable[[Exporter, Reading, dict[str, str]], Any],
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


def _status(whole: bool) -> Callable[[Exporter, Reading, dict[str, str]], Any]:
    def make(exporter: Exporter, reading: Reading, names: dict[str, str]) -> Any:
        group = reading.groups.get(names["group"]) if names["cluster"] == exporter.cluster else None
        return burrow.status(names["cluster"], names["group"], group, whole=whole)

    return make


def _topic(_: Exporter, reading: Reading, names: dict[str, str]) -> Any:
    topic = names["topic"]
    return burrow.topic_offsets(reading.ends, topic, reading.topics[topic]) if topic in reading.topics else None


def _consumer(_: Exporter, reading: Reading, names: dict[str, str]) -> Any:
    group = reading.groups.get(names["group"])
    return burrow.consumer(group) if group is not None else None


def _cluster(exporter: Exporter, _: Reading, __: dict[str, str]) -> Any:
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
