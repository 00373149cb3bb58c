"""The product in a simulated world: its clock, its randomness and its threads are the world's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Any, TypeVar
from unittest import mock

import anyio
import anyio.to_thread

from kzconsumer.brokers import leaders
from kzconsumer.fetcher import broker_fetcher, decode_and_queue
from kzconsumer.group import rebalancer, reconciler
from kzconsumer.offsets import coordinator
from tests.support.simulated.virtual_time import World, clock_of

T = TypeVar("T")

ENTRY_POINTS = cache(metadata.entry_points)
"""They are read from files each time otherwise: half of what a short life costs."""
IN_A_THREAD = 0.003
"""Seconds that a thread takes."""
TINY = 4096
"""Bytes of a response that no thread decodes, in worlds whose threads take long."""


@contextmanager
def product_in(world: World) -> Iterator[None]:
    """Members and sessions that run in processes of this world are determined by it."""

    async def in_a_thread(call: Callable[..., T], *arguments: Any, **_: Any) -> T:
        """What a thread would do: others go on meanwhile."""
        await anyio.sleep(IN_A_THREAD)
        return call(*arguments)

    with (
        clock_of(world),
        mock.patch.object(rebalancer, "random", world.random),
        mock.patch.object(reconciler, "random", world.random),
        mock.patch.object(leaders, "random", world.random),
        mock.patch.object(coordinator, "random", world.random),
        mock.patch.object(anyio.to_thread, "run_sync", in_a_thread),
        mock.patch.object(metadata, "entry_points", ENTRY_POINTS),
    ):
        yield


@contextmanager
def decoding_in(world: World, longest: float) -> Iterator[None]:
    """Threads decode whatever is not tiny, for up to so many seconds; 0: as the product decides."""
    if not longest:
        yield
        return

    async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
        with anyio.CancelScope(shield=True):  # a caller that is cancelled waits for its thread
            await anyio.sleep(world.random.uniform(0.0, longest))
        return call(*arguments)

    with (
        mock.patch.object(broker_fetcher, "SMALL_RESPONSE", TINY),
        mock.patch.object(decode_and_queue, "SMALL_RESPONSE", TINY),
        mock.patch.object(decode_and_queue, "QUICK_BYTES", 0),
        mock.patch.object(decode_and_queue, "in_thread", in_thread),
    ):
        yield
