"""Many requests in one round trip, and reads repeated when their reply was lost.

Writes are never repeated here: only the caller can find out whether a lost one was executed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import anyio

from kzconsumer.errors import ConnectionLostError, KzConsumerError

T = TypeVar("T")


async def outcomes(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T | KzConsumerError]:
    """Each call's result or its error, in order, after all have ended."""
    pending = list(calls)
    results: list[Any] = [None] * len(pending)

    async def run(index: int, call: Coroutine[Any, Any, T]) -> None:
        try:
            results[index] = await call
        except KzConsumerError as error:
            results[index] = error

    async with anyio.create_task_group() as tasks:
        for index, call in enumerate(pending):
            tasks.start_soon(run, index, call)
    return results


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; raises the first error after all calls have ended."""
    results: list[T] = []
    for result in await outcomes(calls):
        if isinstance(result, KzConsumerError):
            raise result
        results.append(result)
    return results


async def repeated(read: Callable[[], Awaitable[T]]) -> T:
    """The result of a read, repeated as long as connections break; each attempt waits for a connection."""
    while True:
        try:
            return await read()
        except ConnectionLostError:
            continue
