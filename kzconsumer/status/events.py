"""Sends changed documents as server-sent events to the status page and `kzconsumer top`.

Each event has the name and content of a document; of the history only points not yet sent on this stream. The document
`group`, which costs reads, is sent to those that ask for it: `events?group`.
"""

from __future__ import annotations

import math

import anyio
import msgspec
from aiohttp import web

from kzconsumer.clock import now
from kzconsumer.status.documents import DOCUMENTS, history_since
from kzconsumer.status.observer import Observer

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
        latest = 0.0
        while not self._ended.is_set():
            documents = self._present()
            if group:
                self._observer.group.ask()
                documents = {**documents, "group": self._observer.group.encoded}
            changed = {name: text for name, text in documents.items() if sent.get(name) != text}
            sent = documents
            points = history_since(self._observer, latest)
            if points:
                latest = points[-1].at
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
