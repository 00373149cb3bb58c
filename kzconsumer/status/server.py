"""Serves metrics, health, JSON and the status page over HTTP, in the member's event loop. Read only."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import anyio
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kzconsumer.errors import CannotListenError
from kzconsumer.logs.logger import get_logger
from kzconsumer.logs.troubles import TROUBLES
from kzconsumer.settings.values import host_and_port
from kzconsumer.status.access import load_token, refusal
from kzconsumer.status.connections import accept
from kzconsumer.status.degraded import degraded
from kzconsumer.status.documents import DOCUMENTS
from kzconsumer.status.events import Events
from kzconsumer.status.metrics import families
from kzconsumer.status.observer import Observer
from kzconsumer.status.page import page
from kzconsumer.status.report import Report

log = get_logger("kzconsumer.status")

#: Seconds for open responses when the daemon ends.
LAST_ANSWERS = 0.5
#: Seconds for a request to arrive, on new and on kept connections.
IDLE = 10.0
#: Without data of the member, and open without the token: the page asks for it.
SHOW_NOTHING = ("/", "/status")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(observer: Observer) -> AsyncIterator[None]:
    """Serve at `[status] listen` during the block. Raises ConfigError for the token, CannotListenError."""
    status, source = observer.settings.status, observer.settings.source
    assert status.listen is not None
    app = application(observer, load_token(status, source))
    runner = web.AppRunner(
        app, handle_signals=False, access_log=None, shutdown_timeout=LAST_ANSWERS, keepalive_timeout=IDLE
    )
    listening = _listen(status.listen, source)
    try:
        await runner.setup()
        assert runner.server is not None
        log.info("status is served", at=_address(listening))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept, listening, runner.server, app[_EVENTS].streams)
            tasks.start_soon(observer.run)
            tasks.start_soon(observer.group.run)
            yield
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()
        listening.close()
        if status.listen.startswith("unix:"):
            with suppress(FileNotFoundError):
                os.unlink(status.listen.removeprefix("unix:"))


def application(observer: Observer, token: bytes | None) -> web.Application:
    registry = CollectorRegistry()
    registry.register(_Collector(observer))
    events = Events(observer)
    app = web.Application(middlewares=[_guard(token)])
    app[_OBSERVER], app[_EVENTS], app[_REGISTRY] = observer, events, registry
    app.on_response_prepare.append(_add_headers)
    app.on_shutdown.append(lambda _: events.end())
    app.add_routes([web.get(path, handler) for path, handler in ROUTES.items()])
    return app


class _Collector(Collector):
    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def describe(self) -> Iterable[Metric]:
        """Empty: registering must not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        at = self._observer
        return families(at.report(), at.counters, at.batches, TROUBLES.all())


_OBSERVER = web.AppKey("observer", Observer)
_EVENTS = web.AppKey("events", Events)
_REGISTRY = web.AppKey("registry", CollectorRegistry)


def _guard(token: bytes | None) -> Any:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is not None and request.path in SHOW_NOTHING:
            return await handler(request)
        host = request.host if _is_tcp(request) else None
        refused = refusal(token, request.headers.get("Authorization", ""), host)
        if refused is HTTPStatus.UNAUTHORIZED:
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"})
        if refused is not None:
            raise web.HTTPForbidden(text="without a token, use the address or name of the loopback interface\n")
        return await handler(request)

    return guarded


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"


def _is_tcp(request: web.Request) -> bool:
    transport = request.transport
    own = transport.get_extra_info("socket") if transport is not None else None
    return own is None or own.family != socket.AF_UNIX


async def _metrics(request: web.Request) -> web.Response:
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return web.Response(body=encode(request.app[_REGISTRY]), headers={"Content-Type": content_type})


async def _live(request: web.Request) -> web.Response:
    fault = _report(request).alive
    return _json({"alive": fault is None, "reason": fault}, 200 if fault is None else 503)


async def _ready(request: web.Request) -> web.Response:
    report = _report(request)
    stalled = [
        {"topic": each.topic, "partition": each.partition, "seconds": each.standing, "reason": each.hindrance}
        for each in report.stalled
    ]
    answer = {
        "ready": report.unready is None,
        "reason": report.unready,
        "degraded": degraded(report),
        "stalled": stalled,
    }
    return _json(answer, 200 if report.unready is None else 503)


def _document(name: str) -> Handler:
    make = DOCUMENTS[name]

    async def answer(request: web.Request) -> web.Response:
        observer = request.app[_OBSERVER]
        return _json(make(observer, observer.report()))

    return answer


async def _group(request: web.Request) -> web.Response:
    return _json(await request.app[_OBSERVER].group.present())


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
    "/metrics": _metrics,
    "/health/live": _live,
    "/health/ready": _ready,
    "/api/v1/events": _stream,
    "/api/v1/group": _group,
    **{f"/api/v1/{name}": _document(name) for name in DOCUMENTS},
}


def _report(request: web.Request) -> Report:
    return request.app[_OBSERVER].report()


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content) + b"\n", status=status, content_type="application/json")


def _listen(address: str, source: str) -> socket.socket:
    """Raises CannotListenError."""
    try:
        return _unix(address.removeprefix("unix:")) if address.startswith("unix:") else _tcp(*host_and_port(address))
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotListenError(f"{source}: [status] listen: cannot listen at {address}: {reason}") from None


def _tcp(host: str, port: int) -> socket.socket:
    family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def _unix(path: str) -> socket.socket:
    """Replaces the socket file of a process that was killed."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale(path):
            os.unlink(path)
        listening.bind(path)
        os.chmod(path, 0o660)
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def _is_stale(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        return asking.connect_ex(path) != 0


def _address(listening: socket.socket) -> str:
    if listening.family == socket.AF_UNIX:
        return f"unix:{listening.getsockname()}"
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
