"""Functions of sinks for runs with one poisoned record; what they have stored is in the directory `DIRECTORY`."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kzconsumer.sinks.interface import Batch, RecordsRejectedError, Rejected

DIRECTORY = "KZCONSUMER_TEST_DIRECTORY"


async def store(batch: Batch) -> None:
    """For the sink `callable`: a file with the offsets of each call; rejects records that are poison."""
    good, bad = list[int](), list[Rejected]()
    for part in batch.ranges:
        for message in part.messages():
            if message.value == b"poison":
                bad.append(Rejected(part.topic, part.partition, message.offset, "it is poison", "poison"))
            else:
                good.append(message.offset)
    Path(os.environ[DIRECTORY], f"{uuid.uuid4().hex}.offsets").write_text(" ".join(map(str, good)))
    if bad:
        raise RecordsRejectedError(bad)


def stored_by_call(path: Path) -> Counter[tuple[int, int]]:
    """Of partition 0."""
    return Counter((0, int(offset)) for file in path.glob("*.offsets") for offset in file.read_text().split())


def overwrite(df: Any, batch_id: int, batch: Any) -> None:
    """For the destination `function`, with planned ranges: a replay puts the same rows in the same place."""
    (part,) = batch.ranges
    out = Path(os.environ[DIRECTORY], "out")
    out.mkdir(exist_ok=True)
    staged = out / f".{uuid.uuid4().hex}"
    pq.write_table(df.select("partition", "offset").toArrow(), staged)
    staged.rename(out / f"{part.first}.parquet")
