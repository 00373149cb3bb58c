"""Threads for what would block the event loop, apart from those of the application.

anyio has 40 for each event loop, which all libraries share: FastAPI runs its plain functions there, a sink its writes.
While those are all blocked, a member could not read its keys, and so could not connect to ZooKeeper or a broker again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

import anyio
from anyio import to_thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_limiters = WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.CapacityLimiter]()


async def in_thread(call: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """As `anyio.to_thread.run_sync`: a caller that is cancelled waits for the end of the call."""
    loop = asyncio.get_running_loop()
    limiter = _limiters.get(loop)
    if limiter is None:  # no limit is needed: each task has one thread at a time
        limiter = _limiters[loop] = anyio.CapacityLimiter(math.inf)
    return await to_thread.run_sync(call, *arguments, limiter=limiter)
