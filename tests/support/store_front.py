"""A proxy before an object store's server: `python -m tests.support.store_front PORT SERVER CONDITIONS TOKEN`.

SERVER is `azure:PORT` of Azurite, where requests are forwarded, or `google:PORT` of fake-gcs-server,
which gets them in the form of its own API. TOKEN is what a client of the latter has to send, since that server asks for
none; of the former it is a shared access signature for requests that are changed here, and lose their own signature.

CONDITIONS is as in `s3_server`, or "late": a copy of Azure is answered while it is pending, and carried out a second
later, if its source is still there. Until then the copy is an empty blob.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, Protocol
from urllib.parse import unquote

from aiohttp import ClientSession, web
from yarl import URL

from kzconsumer_sandbox.servers.configuration import HOST
from tests.support.google_xml import Answer, GoogleServer, Request

CONDITION: Final = ("if-none-match", "x-goog-if-generation-match")
_COPY: Final = "x-ms-copy-source"
_HOP: Final = ("host", "connection", "transfer-encoding")
_LARGEST: Final = 1 << 30


class Server(Protocol):
    async def answer(self, request: Request) -> Answer: ...


class AzureServer:
    def __init__(self, session: ClientSession, port: int, access: str) -> None:
        self._session = session
        self._base = f"http://{HOST}:{port}"
        self._access = access

    async def answer(self, request: Request) -> Answer:
        headers, path = dict(request.headers), request.path
        if source := headers.get(_COPY):  # which has the address of the proxy
            headers[_COPY] = f"{self._base}{source[source.index('/', len('http://')) :]}?{self._access}"
        if headers != request.headers or request.is_changed:
            headers.pop("authorization")
            path += ("&" if "?" in path else "?") + self._access
        url = URL(self._base + path, encoded=True)
        async with self._session.request(
            request.method, url, headers=headers, data=request.body, skip_auto_headers=("Content-Type",)
        ) as response:
            return Answer(response.status, response.headers, await response.read())


class Front:
    def __init__(self, server: Server, conditions: str) -> None:
        self._server = server
        self._conditions = conditions
        self._lost: set[str] = set()
        self._copies: set[asyncio.Task[Answer]] = set()

    async def handle(self, received: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in received.headers.items() if name.lower() not in _HOP}
        request = Request(received.method, received.raw_path, headers, await received.read())
        answer = await self._answer(request)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        length = kept.pop("Content-Length", None)
        if request.method == "HEAD" and length is not None:
            kept["Content-Length"] = length
        return web.Response(status=answer.status, headers=kept, body=answer.body)

    async def _answer(self, request: Request) -> Answer:
        is_probe = "/probe-" in unquote(request.path)
        if self._conditions == "none" or (self._conditions == "probes" and not is_probe):
            request = request.without(*CONDITION)
        is_conditional = any(name in request.headers for name in CONDITION)
        if self._conditions == "lost" and is_conditional and request.path not in self._lost:
            self._lost.add(request.path)
            await self._server.answer(request)
            return Answer(500, {})
        if self._conditions == "late" and _COPY in request.headers:
            return await self._begin_copy(request)
        return await self._server.answer(request)

    async def _begin_copy(self, request: Request) -> Answer:
        empty = request.without(_COPY)
        empty.headers["x-ms-blob-type"] = "BlockBlob"
        begun = await self._server.answer(empty)
        if begun.status != 201:
            return begun
        self._copies.add(asyncio.create_task(self._copy_late(request.without(*CONDITION))))
        return Answer(202, {"x-ms-copy-status": "pending", "x-ms-copy-id": "1"})

    async def _copy_late(self, request: Request) -> Answer:
        await asyncio.sleep(1)
        return await self._server.answer(request)


async def serve(port: int, server: str, conditions: str, token: str) -> None:
    kind, _, upstream = server.rpartition(":")
    async with ClientSession(auto_decompress=False) as session:
        known = (GoogleServer if kind == "google" else AzureServer)(session, int(upstream), token)
        application = web.Application(client_max_size=_LARGEST)
        application.router.add_route("*", "/{path:.*}", Front(known, conditions).handle)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, HOST, port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), *sys.argv[2:5]))
