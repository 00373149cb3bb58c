"""Accepts the connections of the status server, up to a limit.

The member needs its file descriptors for ZooKeeper and brokers. At the limit the oldest connection that is not a stream
of events is closed, so that one client cannot keep others out. asyncio's own server has no limit.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection

from aiohttp import web

from kzconsumer.logs.logger import get_logger

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
            await _make_room(server, streams)
            await loop.connect_accepted_socket(server, connection)
        except OSError:
            connection.close()
        except BaseException:
            connection.close()
            raise


async def _make_room(server: web.Server, streams: Collection[object]) -> None:
    counted = [each for each in server.connections if each not in streams and each.transport is not None]
    if len(counted) < MOST:
        return
    for oldest in counted[: len(counted) - MOST + 1]:
        assert oldest.transport is not None
        oldest.transport.abort()
    await asyncio.sleep(0)  # the descriptor is closed in the loop's next turn
