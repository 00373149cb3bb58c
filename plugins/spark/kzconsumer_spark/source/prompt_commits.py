"""How a query's member learns at once that Spark has committed a batch: from a listener, through a socket.

Without the listener it learns that when Spark asks for the next batch. The end of a batch names the socket of the
process that made it, so the news reaches the query's own member.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio
from anyio.abc import SocketStream
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kzconsumer.logs.logger import get_logger
from kzconsumer.own_files import own_directory

_KEY: Final = "socket"
SECONDS: Final = 5.0
_LONGEST: Final = 60
"""Bytes of the directory in which ours is made."""
_log = get_logger("kzconsumer.spark")


class PromptCommits(StreamingQueryListener):
    """`spark.streams.addListener(PromptCommits())`: the group's offsets are committed when Spark commits a batch.

    For all queries of the session that read from a `GroupSource`; with Spark Connect, too, whose server runs it.
    """

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Spark reports a batch when it is in the checkpoint's commit log."""
        for source in event.progress.sources:
            announce(source.endOffset)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is committed."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """As above."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """As above."""


def announce(offset: str | None) -> None:
    """Send the end of a batch to the process that made it, if it is one of a `GroupSource` that still runs."""
    if offset is None:
        return
    with suppress(ValueError, OSError):
        content = json.loads(offset)
        if isinstance(content, dict) and (path := content.get(_KEY)):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(SECONDS)
                connection.connect(path)
                connection.sendall(offset.encode())


@asynccontextmanager
async def committed_ends(take: Callable[[dict[str, Any]], None]) -> AsyncIterator[str]:
    """The path of a socket that only this user can reach, empty if there is no place for one.

    `take` gets each end that listeners write to it.
    """

    async def serve(connection: SocketStream) -> None:
        received = bytearray()
        async with connection:
            with anyio.move_on_after(SECONDS), suppress(anyio.BrokenResourceError):
                async for piece in connection:
                    received += piece
        with suppress(ValueError):
            take(json.loads(received))

    async with AsyncExitStack() as stack:
        try:
            directory = stack.enter_context(TemporaryDirectory(prefix="", dir=own_directory("spark", place())))
            path = str(Path(directory, "commits"))
            listener = await stack.enter_async_context(await anyio.create_unix_listener(path))
        except OSError as error:
            _log.warning("no socket for PromptCommits, commits are one batch late", reason=str(error))
            yield ""
            return
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(listener.serve, serve)
        yield path
        tasks.cancel_scope.cancel()


def place() -> str:
    """A socket's path has 107 bytes at most; the temporary directory of a container may have more."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _LONGEST else "/tmp"
