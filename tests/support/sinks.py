"""Functions for the callable sink, each with a behaviour that a test needs."""

from __future__ import annotations

import json
import sys
import time
from typing import cast

import anyio

from kzconsumer.sinks.interface import Batch, RecordsRejectedError, Rejected


async def hang(batch: Batch) -> None:
    await anyio.sleep_forever()


async def refuse(batch: Batch) -> None:
    raise OSError("the disk is full")


async def repeat_a_secret(batch: Batch) -> None:
    raise OSError("nobody answers at https://me:PLANTED-by-a-function@host/bucket")


async def print_slowly(batch: Batch) -> None:
    """Topic, partition and offset of each record as a line of JSON, at a pace that a test can interrupt."""
    for part in batch.ranges:
        for records in part.batches:
            for offset in records.column("offset").to_pylist():
                print(json.dumps({"topic": part.topic, "partition": part.partition, "offset": offset}))
    print(end="", flush=True)
    await anyio.sleep(0.1)


async def print_wholesome(batch: Batch) -> None:
    """As above; it prints nothing of a batch with a poisonous value in it."""
    for part in batch.ranges:
        for records in part.batches:
            if b"poison" in records.column("value").to_pylist():
                raise ValueError(f"{part.range} is poison")
    await print_slowly(batch)


async def append_slowly(batch: Batch) -> None:
    """Values to `records` in the working directory, two seconds after it has created `began`."""
    await anyio.Path("began").touch()
    await anyio.sleep(2)
    async with await anyio.Path("records").open("a") as file:
        await file.write("".join(f"{value}\n" for value in _texts(batch)))


async def try_what_is_forbidden(batch: Batch) -> None:
    """The outcomes (`tests.support.forbidden`) to the file `outcomes`; records are files to be read."""
    command = [sys.executable, "-m", "tests.support.forbidden", *_texts(batch)]
    done = await anyio.run_process(command, stderr=None)
    await anyio.Path("outcomes").write_bytes(done.stdout)


def _texts(batch: Batch) -> list[str]:
    columns = [records.column("value") for part in batch.ranges for records in part.batches]
    return [(value or b"").decode() for column in columns for value in column.to_pylist()]


_slept: list[Batch] = []


async def sleep_for_longer_than_a_session(batch: Batch) -> None:
    """Each range as a line of JSON; the first takes longer than a session of 6 s that nothing renews."""
    if not _slept:
        _slept.append(batch)
        await anyio.sleep(8)
    for part in batch.ranges:
        print(json.dumps({"partition": part.partition, "first": part.first, "until": part.until}), flush=True)


async def block(batch: Batch) -> None:
    """What a function must not do: meanwhile nothing else runs."""
    time.sleep(60)  # noqa: ASYNC251


async def print_all_but_poison(batch: Batch) -> None:
    """Each valid value as a line of JSON; poison is rejected after all others are printed."""
    poison = []
    for part in batch.ranges:
        for records in part.batches:
            values = records.column("value").to_pylist()
            for offset, value in zip(cast("list[int]", records.column("offset").to_pylist()), values, strict=True):
                if value == b"poison":
                    poison.append(Rejected(part.topic, part.partition, offset, "it is poison", "undecodable"))
                else:
                    print(json.dumps({"partition": part.partition, "offset": offset}), flush=True)
    if poison:
        raise RecordsRejectedError(poison)


async def hang_on_poison(batch: Batch) -> None:
    """Writes until a batch has a poisonous value in it."""
    for part in batch.ranges:
        for records in part.batches:
            if b"poison" in records.column("value").to_pylist():
                await anyio.sleep_forever()
