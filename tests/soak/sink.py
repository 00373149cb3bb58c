"""A sink for the soak: records the offsets it was given, a line for each range. At least once: it lingers after that.

`KZCONSUMER_SOAK_RANGES` names the directory; each process writes a file of its own, so that no line is torn.
`KZCONSUMER_SOAK_PACE` is how many records it takes in a second, without a limit if it is missing.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import cast

from kzconsumer.sinks.interface import Batch

RANGES = "KZCONSUMER_SOAK_RANGES"
PACE = "KZCONSUMER_SOAK_PACE"

LINGERS = 0.3
"""Seconds: so that a member may die between the write and its commit."""


async def store(batch: Batch) -> None:
    lines = []
    for part in batch.ranges:
        for records in part.batches:
            offsets = cast("list[int]", records.column("offset").to_pylist())
            lines.append(f"{part.topic} {part.partition} {min(offsets)} {max(offsets) + 1} {len(offsets)}\n")
    await asyncio.to_thread(note, "".join(lines))
    await asyncio.sleep(max(LINGERS, batch.records / float(os.environ.get(PACE, "inf"))))


def note(lines: str) -> None:
    with Path(os.environ[RANGES], f"{os.getpid()}.ranges").open("a") as file:
        file.write(lines)
