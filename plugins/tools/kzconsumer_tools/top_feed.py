"""The status of running daemons, read from their event streams: what `kzconsumer top` shows."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp
import anyio
import msgspec

from kzconsumer.settings.value_readers import read_listen

#: Seconds without an event or comment after which a daemon counts as lost, and between two attempts to connect.
SILENCE = 10.0
RETRY = 2.0


class Address(NamedTuple):
    """`listen` as in `[status]`, and the token of that daemon."""

    listen: str
    token: bytes | None = None


class DaemonFeed:
    """One daemon and its newest document of each name."""

    def __init__(self, address: Address, *, group: bool = False) -> None:
        """`group`: also read every partition of its group, which costs the daemon reads."""
        self.address = address
        self.group = group
        self.of = ""
        """The name of the group, before it is read: empty if only the daemon knows it."""
        self.documents: dict[str, Any] = {}
        self.lost: float | None = None
        """Since when it is unreachable, in seconds since 1970; None while it is reached."""
        self.reason = ""
        self.answered = anyio.Event()
        """The first attempt has succeeded or failed."""

    def __repr__(self) -> str:
        return f"<DaemonFeed {self.address.listen} {self.reason or 'reached'}>"

    async def run(self) -> None:
        """Keep it up to date until cancelled."""
        await follow(self)

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.documents.get("status", {})
        return found

    @property
    def healthy(self) -> bool:
        """It is reached and healthy."""
        return self.lost is None and self.status.get("health") == "healthy"


def read_address(text: str) -> str:
    """Reads `[status] listen`, the URL in the log (`http://...`) or a socket's path. Raises ValueError."""
    bare = text.removeprefix("http://").removesuffix("/")
    return read_listen(f"unix:{text}" if text.startswith("/") else bare)


async def follow(feed: DaemonFeed) -> None:
    """Keep the feed up to date until cancelled; reconnects."""
    while True:
        try:
            await _listen(feed)
            reason = "it has stopped"
        except TimeoutError:
            reason = "no answer"
        except (OSError, aiohttp.ClientError, _Refused) as error:
            reason = _reason(error)
        feed.lost = feed.lost or time.time()
        feed.reason = reason
        feed.answered.set()
        await anyio.sleep(RETRY)


class _Refused(Exception):
    pass


async def _listen(feed: DaemonFeed) -> None:
    listen, token = feed.address
    socket = listen.removeprefix("unix:") if listen.startswith("unix:") else None
    async with (
        aiohttp.ClientSession(
            "http://localhost" if socket else f"http://{listen}",
            connector=aiohttp.UnixConnector(socket) if socket else None,
            headers={"Authorization": f"Bearer {token.decode('utf-8', 'replace')}"} if token is not None else None,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE),
        ) as session,
        session.get("/api/v1/events", params={"group": ""} if feed.group else {}) as answer,
    ):
        if answer.status == 401:
            raise _Refused("it requires a token" if token is None else "the token is wrong")
        if answer.content_type != "text/event-stream":
            raise _Refused(f"no status served there: HTTP {answer.status}")
        async for name, document in events(answer.content):
            feed.documents[name] = document
            feed.lost, feed.reason = None, ""
            complete = name == "partitions" and not feed.group
            if complete or (name == "group" and (document["at"] or document["reason"])):
                feed.answered.set()


async def events(content: aiohttp.StreamReader) -> AsyncIterator[tuple[str, Any]]:
    """Name and document of each event; comments are skipped."""
    begun = b""
    async for part in content.iter_any():
        *whole, begun = (begun + part).split(b"\n\n")
        for event in whole:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
            if b"data" in fields:
                yield fields[b"event"].decode(), msgspec.json.decode(fields[b"data"])


def _reason(error: Exception) -> str:
    """The system's error message, without the address, which is shown beside it."""
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, ConnectionRefusedError):
        return "refused: check [status] listen"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientResponseError):
        return f"no status served there: {error}"
    return getattr(cause, "strerror", None) or str(error) or type(error).__name__
