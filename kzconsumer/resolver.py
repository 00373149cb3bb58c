"""The addresses of host names. A resolver that does not answer for one name delays no other.

Each name is looked up in a thread of its own, and by one thread at a time. The event loops' own `getaddrinfo` has few
threads for all names (asyncio's are those of everything else, uvloop's are four), each attempt to connect would occupy
another one for as long as the resolver is silent, and asyncio waits for them when it ends, which would delay a stop.

An answer may come when the attempt that asked has given up, as if the first of several name servers is down, which
costs 5 s (`timeout` in resolv.conf). The next attempt takes it. Otherwise it would begin another look-up, and give up
before that one ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from functools import partial
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

_Found: TypeAlias = list[tuple[Any, ...]]
_Name: TypeAlias = tuple[str, int]

LATE: Final = 10.0
"""Seconds for which an answer that nobody waited for is kept, for one attempt."""


class _LookUp:
    """Of one name. `waiting`: how many attempts wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[_Found] = loop.create_future()
        self.waiting = 0


_under_way = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Name, _LookUp]]()


async def addresses(host: str, port: int) -> _Found:
    """As `socket.getaddrinfo` returns them. Raises OSError."""
    loop = asyncio.get_running_loop()
    under_way = _under_way.setdefault(loop, {})
    found = under_way.get((host, port))
    if found is None:
        found = _LookUp(loop)
        arguments = loop, found.answer, host, port
        try:
            threading.Thread(target=_look_up, args=arguments, name=f"look-up of {host}", daemon=True).start()
        except RuntimeError as error:  # the system gives this process no more threads (TasksMax of systemd, ulimit -u)
            raise OSError(f"no thread to look up {host}: {error}") from error
        under_way[host, port] = found
        found.answer.add_done_callback(partial(_ended, loop, under_way, (host, port), found))
    found.waiting += 1
    try:
        return await asyncio.shield(found.answer)
    finally:
        found.waiting -= 1
        if found.answer.done():
            _forget(under_way, (host, port), found)


def _look_up(loop: asyncio.AbstractEventLoop, found: asyncio.Future[_Found], host: str, port: int) -> None:
    try:
        output = partial(found.set_result, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no DNS label can hold
        output = partial(found.set_exception, error)
    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(output)


def _ended(
    loop: asyncio.AbstractEventLoop,
    under_way: dict[_Name, _LookUp],
    name: _Name,
    found: _LookUp,
    answer: asyncio.Future[_Found],
) -> None:
    if not answer.cancelled():
        answer.exception()  # read here: those who asked may have given up
    if found.waiting:
        _forget(under_way, name, found)
    else:
        loop.call_later(LATE, _forget, under_way, name, found)


def _forget(under_way: dict[_Name, _LookUp], name: _Name, found: _LookUp) -> None:
    if under_way.get(name) is found:
        del under_way[name]
