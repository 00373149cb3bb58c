"""Serves metrics, health, JSON and the status page over HTTP, in the member's event loop. Read only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client.core import Metric

from kzconsumer.logs.troubles import TROUBLES
from kzconsumer.status.access import load_token
from kzconsumer.status.degraded import examination
from kzconsumer.status.documents import DOCUMENTS
from kzconsumer.status.events import Events
from kzconsumer.status.metrics import families
from kzconsumer.status.observer import Observer
from kzconsumer.status.page import page
from kzconsumer.status.report import Report
from kzconsumer.status.web_server import Handler, application, json_response, metrics, served

#: Without data of the member, and open without the token: the page asks for it.
SHOW_NOTHING = ("/", "/status")


@asynccontextmanager
async def serving(observer: Observer) -> AsyncIterator[None]:
    """Serve at `[status] listen` during the block. Raises ConfigError for the token, CannotListenError."""
    status, source = observer.settings.status, observer.settings.source
    assert status.listen is not None
    app = application(ROUTES, load_token(status, source), SHOW_NOTHING, lambda: _collect(observer))
    app[_OBSERVER], app[_EVENTS] = observer, Events(observer)
    app.on_shutdown.append(lambda _: app[_EVENTS].end())
    async with served(app, status.listen, source, app[_EVENTS].streams) as tasks:
        tasks.start_soon(observer.group.run)
        yield


def _collect(at: Observer) -> Iterable[Metric]:
    return families(at.report(), at.counters, at.batches, TROUBLES.all())


_OBSERVER = web.AppKey("observer", Observer)
_EVENTS = web.AppKey("events", Events)


async def _live(request: web.Request) -> web.Response:
    fault = _report(request).alive
    return json_response({"alive": fault is None, "reason": fault}, 200 if fault is None else 503)


async def _ready(request: web.Request) -> web.Response:
    report = _report(request)
    stalled = [
        {"topic": each.topic, "partition": each.partition, "seconds": each.standing, "reason": each.hindrance}
        for each in report.stalled
    ]
    examined = examination(report)
    answer = {
        "ready": report.unready is None,
        "reason": report.unready,
        "health": examined.health,
        "findings": examined.findings,
        "not_asked": examined.not_asked,
        "stalled": stalled,
    }
    return json_response(answer, 200 if report.unready is None else 503)


def _document(name: str) -> Handler:
    make = DOCUMENTS[name]

    async def answer(request: web.Request) -> web.Response:
        observer = request.app[_OBSERVER]
        return json_response(make(observer, observer.report()))

    return answer


async def _group(request: web.Request) -> web.Response:
    return json_response(await request.app[_OBSERVER].group.present())


async def _stream(request: web.Request) -> web.StreamResponse:
    return await request.app[_EVENTS].stream(request)


async def _page(request: web.Request) -> web.Response:
    headers = {"Content-Security-Policy": page().policy, "Referrer-Policy": "no-referrer"}
    return web.Response(text=page().html, content_type="text/html", headers=headers)


async def _home(request: web.Request) -> web.Response:
    raise web.HTTPFound("status")


ROUTES: dict[str, Handler] = {
    "/": _home,
    "/status": _page,
    "/metrics": metrics,
    "/health/live": _live,
    "/health/ready": _ready,
    "/api/v1/events": _stream,
    "/api/v1/group": _group,
    **{f"/api/v1/{name}": _document(name) for name in DOCUMENTS},
}


def _report(request: web.Request) -> Report:
    return request.app[_OBSERVER].report()
