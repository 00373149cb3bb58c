"""Functions for the callable sink, each of one behaviour a test asks for."""

from __future__ import annotations

import anyio

from kzconsumer.sinks.interface import Batch


async def hang(batch: Batch) -> None:
    await anyio.sleep_forever()


async def refuse(batch: Batch) -> None:
    raise OSError("the disk is full")
