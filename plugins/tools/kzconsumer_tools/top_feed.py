"""Daemons elsewhere, as their status tells: what `kzconsumer top` shows.

Owns what was last heard of each daemon. `follow` listens to one daemon's events, and asks again for as long as it is
not reached.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp
import anyio
import msgspec

from kzconsumer.settings.values import read_listen

#: Seconds without even a comment after which a daemon is gone, and between two attempts to reach one.
SILENCE = 10.0
RETRY = 2.0


class Address(NamedTuple):
    """`listen` as in `[status]`; the token is what that daemon asks for."""

    listen: str
    token: bytes | None = None


class Watched:
    """One daemon; the newest document of each name."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.documents: dict[str, Any] = {}
        self.lost: float | None = None
        """Since when it cannot be reached, in seconds since 1970; None while it can."""
        self.reason = ""
        self.asked = anyio.Event()
        """It has been heard of, or was not to be reached."""

    def __repr__(self) -> str:
        return f"<Watched {self.address.listen} {self.reason or 'reached'}>"

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.documents.get("status", {})
        return found

    @property
    def healthy(self) -> bool:
        """It does its part, and nothing it owns stands still."""
        now = self.status
        return self.lost is None and bool(now.get("ready") and now.get("alive") and not now.get("stalled"))


def read_address(text: str) -> str:
    """What `[status] listen` says, or the log (`http://...`), or a socket's path. Raises ValueError."""
    bare = text.removeprefix("http://").removesuffix("/")
    return read_listen(f"unix:{text}" if text.startswith("/") else bare)


async def follow(watched: Watched) -> None:
    """For ever."""
    while True:
        try:
            await _listen(watched)
            reason = "it has ended"
        except TimeoutError:
            reason = "no answer"
        except (OSError, aiohttp.ClientError, _Refused) as error:
            reason = _words(error)
        watched.lost = watched.lost or time.time()
        watched.reason = reason
        watched.asked.set()
        await anyio.sleep(RETRY)


class _Refused(Exception):
    pass


async def _listen(watched: Watched) -> None:
    listen, token = watched.address
    socket = listen.removeprefix("unix:") if listen.startswith("unix:") else None
    async with (
        aiohttp.ClientSession(
            "http://localhost" if socket else f"http://{listen}",
            connector=aiohttp.UnixConnector(socket) if socket else None,
            headers={"Authorization": f"Bearer {token.decode('utf-8', 'replace')}"} if token is not None else None,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE),
        ) as session,
        session.get("/api/v1/events") as answer,
    ):
        if answer.status == 401:
            raise _Refused("it wants its token" if token is None else "the token is not the one")
        if answer.content_type != "text/event-stream":
            raise _Refused(f"no status is served there: HTTP {answer.status}")
        async for name, document in events(answer.content):
            watched.documents[name] = document
            watched.lost, watched.reason = None, ""
            if name == "partitions":
                watched.asked.set()


async def events(content: aiohttp.StreamReader) -> AsyncIterator[tuple[str, Any]]:
    """Name and document of each; comments are passed over."""
    begun = b""
    async for part in content.iter_any():
        *whole, begun = (begun + part).split(b"\n\n")
        for event in whole:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
            if b"data" in fields:
                yield fields[b"event"].decode(), msgspec.json.decode(fields[b"data"])


def _words(error: Exception) -> str:
    """The system's reason, without the address that is shown beside it."""
    cause = getattr(error, "os_error", None) or error
    return getattr(cause, "strerror", None) or str(error) or type(error).__name__
