"""The addresses of host names. A resolver that does not answer for one name delays no other.

Each name is looked up in a thread of its own, and by one thread at a time. The event loops' own `getaddrinfo` has few
threads for all names (asyncio's are those of everything else, uvloop's are four), each attempt to connect would occupy
another one for as long as the resolver is silent, and asyncio waits for them when it ends, which would delay a stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

_Found: TypeAlias = list[tuple[Any, ...]]
_Name: TypeAlias = tuple[str, int]

_under_way = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Name, asyncio.Future[_Found]]]()


async def addresses(host: str, port: int) -> _Found:
    """As `socket.getaddrinfo` returns them. Raises OSError."""
    loop = asyncio.get_running_loop()
    under_way = _under_way.setdefault(loop, {})
    found = under_way.get((host, port))
    if found is None:
        found = under_way[host, port] = loop.create_future()
        found.add_done_callback(partial(_forget, under_way, (host, port)))
        arguments = loop, found, host, port
        threading.Thread(target=_look_up, args=arguments, name=f"look-up of {host}", daemon=True).start()
    return await asyncio.shield(found)


def _look_up(loop: asyncio.AbstractEventLoop, found: asyncio.Future[_Found], host: str, port: int) -> None:
    try:
        output = partial(found.set_result, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no DNS label can hold
        output = partial(found.set_exception, error)
    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(output)


def _forget(under_way: dict[_Name, asyncio.Future[_Found]], name: _Name, found: asyncio.Future[_Found]) -> None:
    del under_way[name]
    if not found.cancelled():
        found.exception()  # read here: those who asked may have given up
