"""Serves metrics, health, JSON and the status page over HTTP, in the member's event loop. Read only."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import NamedTuple

import anyio
import msgspec
from aiohttp import web
from prometheus_client.core import Metric

from kzconsumer.clock import now
from kzconsumer.display import HIDDEN, is_secret, redacted
from kzconsumer.lag.totals import age_text, lag_text
from kzconsumer.logs.setup import TROUBLES
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.table_reader import keys_of
from kzconsumer.status.access import load_token
from kzconsumer.status.metrics import families
from kzconsumer.status.observer import Observer
from kzconsumer.status.partition_health import INTERVAL
from kzconsumer.status.report import Point, Report, examination
from kzconsumer.status.web_server import Handler, application, json_response, metrics, served


def _status(report: Report) -> object:
    total, examined = report.total, examination(report)
    return {
        "version": report.version,
        "started": report.started,
        "cluster": report.cluster,
        "group": report.group,
        "member": report.member,
        "state": report.state,
        "ready": report.unready is None,
        "alive": report.alive is None,
        "reason": report.alive or report.unready,
        "health": examined.health,
        "findings": examined.findings,
        "not_asked": examined.not_asked,
        "session": report.session,
        "generation": report.generation,
        "members": len(report.members),
        "owned": len(report.partitions),
        "stalled": len(report.stalled),
        "judgement": report.judgement,
        "lag": total.lag,
        "lag_seconds": total.lag_seconds,
        "lag_text": lag_text(total),
        "lag_seconds_text": age_text(total),
        "total": total,
        "rate": report.rate,
        "eta": report.eta,
    }


def history_since(observer: Observer, last: Point | None) -> list[Point]:
    """Observations after this one, the latest last. Their times may go back, as the clock of the system does."""
    return list(takewhile(lambda look: look is not last, reversed(observer.history)))[::-1]


DOCUMENTS: dict[str, Callable[[Observer, Report], object]] = {
    "status": lambda observer, report: _status(report),
    "members": lambda observer, report: {"generation": report.generation, "members": report.members},
    "partitions": lambda observer, report: {
        "owned": report.partitions,
        "assigned": report.assigned,
        "queues": report.queues,
    },
    "history": lambda observer, report: {"interval": INTERVAL, "points": list(observer.history)},
    "rebalances": lambda observer, report: {"rebalances": list(observer.counters.rebalances.timeline)},
    "batches": lambda observer, report: {
        "present": report.batch,
        "ended": report.batches,
        "sink": report.sink,
    },
    "errors": lambda observer, report: {"errors": TROUBLES.all()},
    "config": lambda observer, report: {"config": effective_settings(observer.settings)},
}


def effective_settings(settings: Settings) -> dict[str, object]:
    """Every key with its value as written in the file, secrets redacted."""
    return {
        ".".join(place): HIDDEN if is_secret(place[-1]) else redacted(written)
        for place, _, written in keys_of(settings)
        if place != ("source",)
    }


# Server-sent events, for the status page and `kzconsumer top`: each has the name and content of a document that has
# changed; of the history only points not yet sent on this stream. The document `group`, which costs reads, is sent to
# those that ask for it: `events?group`.

#: Seconds between two events of a stream; if nothing has changed, a comment is sent.
PERIOD = 2.0
#: Streams at once.
MOST = 32
#: A stream that is not read for so many seconds ends.
PATIENCE = 30.0


class Events:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._made = -math.inf
        self._documents: dict[str, bytes] = {}
        self.streams: set[object] = set()
        """The server's connections that are streams."""
        self._ended = anyio.Event()

    async def end(self) -> None:
        self._ended.set()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        if len(self.streams) >= MOST:
            raise web.HTTPServiceUnavailable(text=f"{MOST} streams are open already\n", headers={"Retry-After": "10"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.streams.add(request.protocol)
        try:
            await response.prepare(request)
            if request.method == "GET":
                await self._send(response, group="group" in request.query)
        except (ConnectionResetError, TimeoutError):
            pass  # the client has disconnected
        finally:
            self.streams.discard(request.protocol)
        return response

    async def _send(self, response: web.StreamResponse, *, group: bool) -> None:
        sent: dict[str, bytes] = {}
        latest: Point | None = None
        while not self._ended.is_set():
            documents = self._present()
            if group:
                self._observer.group.ask()
                documents = {**documents, "group": self._observer.group.encoded}
            changed = {name: text for name, text in documents.items() if sent.get(name) != text}
            sent = documents
            points = history_since(self._observer, latest)
            if points:
                latest = points[-1]
                changed["history"] = msgspec.json.encode({"points": points})
            events = [b"event: %s\ndata: %s\n\n" % (name.encode(), text) for name, text in changed.items()]
            with anyio.fail_after(PATIENCE):
                await response.write(b"".join(events) or b":\n\n")
            with anyio.move_on_after(PERIOD):
                await self._ended.wait()

    def _present(self) -> dict[str, bytes]:
        if now() - self._made > PERIOD / 2:
            report = self._observer.report()
            self._documents = {
                name: msgspec.json.encode(make(self._observer, report))
                for name, make in DOCUMENTS.items()
                if name != "history"
            }
            self._made = now()
        return self._documents


# The status page as one document, and the content security policy that allows just its own style and script.

#: Concatenated in this order.
SCRIPTS = ("words.js", "elements.js", "help.js", "sections.js", "charts.js", "events.js")


class Page(NamedTuple):
    html: str
    policy: str
    """For the header Content-Security-Policy."""


@cache
def page() -> Page:
    parts = files("kzconsumer.status") / "browser"
    html, style, *scripts = ((parts / name).read_text("utf-8") for name in ("page.html", "page.css", *SCRIPTS))
    script = "".join(scripts)
    html = html.replace("></style>", f">{style}</style>").replace("></script>", f">{script}</script>")
    return Page(html, _policy(style, script))


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
    async with served(app, status.listen, f"{source}: [status] listen", app[_EVENTS].streams) as tasks:
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
