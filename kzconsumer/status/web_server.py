"""Serves metrics and JSON over HTTP, read only: what the daemon's status and other programs of this kind share."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import anyio
import msgspec
from aiohttp import web
from anyio.abc import TaskGroup
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kzconsumer import connecting
from kzconsumer.errors import CannotListenError
from kzconsumer.logs.logger import get_logger
from kzconsumer.settings.value_readers import host_and_port
from kzconsumer.status.access import refusal

# The member needs its file descriptors for ZooKeeper and brokers, and asyncio's own server has no limit. At ours the
# oldest connection that is not a stream of events is closed, so that one client cannot keep others out.

log = get_logger("kzconsumer.status")

#: Connections at once, beside streams of events.
MOST = 64
#: Seconds until the next attempt, when the process or the system has no descriptor left.
PAUSE = 1.0


async def accept(listening: socket.socket, server: web.Server, streams: Collection[object]) -> None:
    """Run until cancelled; `streams` are connections of the server that do not count."""
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except ConnectionAbortedError:
            continue
        except OSError as error:
            log.warning("status connection not accepted", reason=error.strerror)
            await asyncio.sleep(PAUSE)
            continue
        try:
            await make_room(server, streams)
            await loop.connect_accepted_socket(server, connection)
        except OSError:
            connection.close()
        except BaseException:
            connection.close()
            raise


async def make_room(server: web.Server, streams: Collection[object]) -> None:
    counted = [each for each in server.connections if each not in streams and each.transport is not None]
    if len(counted) < MOST:
        return
    for oldest in counted[: len(counted) - MOST + 1]:
        assert oldest.transport is not None
        oldest.transport.abort()
    await asyncio.sleep(0)  # the descriptor is closed in the loop's next turn


#: Seconds for open responses when the daemon ends.
LAST_ANSWERS = 0.5
#: Seconds for a request to arrive, on new and on kept connections.
IDLE = 10.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    routes: Mapping[str, Handler],
    token: bytes | None,
    open_paths: Collection[str],
    collect: Callable[[], Iterable[Metric]],
) -> web.Application:
    """`open_paths` need no token; `collect` makes what `metrics` encodes."""
    app = web.Application(middlewares=[_guard(token, open_paths)])
    app[_REGISTRY] = CollectorRegistry()
    app[_REGISTRY].register(_Collector(collect))
    app.on_response_prepare.append(_add_headers)
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    return app


class _Collector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        """Empty: registering must not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._collect()


_REGISTRY = web.AppKey("registry", CollectorRegistry)


@asynccontextmanager
async def served(
    app: web.Application, listen: str, setting: str, streams: Collection[object] = ()
) -> AsyncIterator[TaskGroup]:
    """Serve at `listen` during the block, whose tasks end with it. `streams`: see `accept`.

    Raises CannotListenError, which begins with the `setting` that the address is from.
    """
    runner = web.AppRunner(
        app, handle_signals=False, access_log=None, shutdown_timeout=LAST_ANSWERS, keepalive_timeout=IDLE
    )
    listening = listening_socket(listen, setting)
    try:
        await runner.setup()
        assert runner.server is not None
        log.info("status is served", at=_address(listening))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept, listening, runner.server, streams)
            yield tasks
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()
        listening.close()
        if listen.startswith("unix:"):
            with suppress(FileNotFoundError):
                os.unlink(listen.removeprefix("unix:"))


def _guard(token: bytes | None, open_paths: Collection[str]) -> Any:
    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is not None and request.path in open_paths:
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


async def metrics(request: web.Request) -> web.Response:
    return _encoded(*_collected(request))


async def metrics_in_thread(request: web.Request) -> web.Response:
    """As `metrics`, while the loop goes on. For a `collect` that other threads may call."""
    return _encoded(*await anyio.to_thread.run_sync(_collected, request))


def _collected(request: web.Request) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return encode(request.app[_REGISTRY]), content_type


def _encoded(body: bytes, content_type: str) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": content_type})


def json_response(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content) + b"\n", status=status, content_type="application/json")


def listening_socket(address: str, setting: str) -> socket.socket:
    """Raises CannotListenError."""
    try:
        return _unix(address.removeprefix("unix:")) if address.startswith("unix:") else _tcp(*host_and_port(address))
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotListenError(f"{setting}: cannot listen at {address}: {reason}") from None


def _tcp(host: str, port: int) -> socket.socket:
    family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        connecting.listen(listening)
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
        connecting.listen(listening)
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
