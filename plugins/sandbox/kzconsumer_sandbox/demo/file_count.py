"""Counts messages in the demo's Parquet files with Arrow: what has not written them reads them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from anyio import to_thread
from pyarrow import dataset

from kzconsumer_sandbox.sandbox_errors import DemoFailed


class Counted(msgspec.Struct, frozen=True):
    """`rows` in the files, `distinct` messages in them, `elsewhere`: messages at more than one offset."""

    rows: int
    distinct: int
    elsewhere: int


class _Message(msgspec.Struct):
    id: int


_DECODER = msgspec.json.Decoder(_Message)


async def count(path: Path, messages: int) -> Counted:
    """Count the Parquet files under `path`, of which messages 0 to `messages` - 1 are counted. Raises DemoFailed."""
    try:
        return await to_thread.run_sync(_count, path, messages)
    except (OSError, pa.ArrowException) as error:
        raise DemoFailed(f"the Parquet files in {path} could not be read: {error}") from error


def _count(path: Path, messages: int) -> Counted:
    files = dataset.dataset(path, format="parquet")
    batches = [_numbered(batch, messages) for batch in files.to_batches(columns=["value", "partition", "offset"])]
    found = pa.Table.from_batches(batches, _SCHEMA)
    messages_found = found.drop_null().group_by("id")
    places = messages_found.aggregate([(column, edge) for column in ("partition", "offset") for edge in ("min", "max")])
    moved = [pc.not_equal(places[f"{column}_min"], places[f"{column}_max"]) for column in ("partition", "offset")]
    return Counted(found.num_rows, places.num_rows, places.filter(pc.or_(*moved)).num_rows)


_SCHEMA = pa.schema({"id": pa.int64(), "partition": pa.int32(), "offset": pa.int64()})


def _numbered(batch: pa.RecordBatch, messages: int) -> pa.RecordBatch:
    numbers = [_number(value, messages) for value in batch["value"].to_pylist()]
    return pa.record_batch([numbers, batch["partition"], batch["offset"]], schema=_SCHEMA)


def _number(value: bytes | None, messages: int) -> int | None:
    """None: no message of the demo."""
    try:
        number = _DECODER.decode(value or b"").id
    except msgspec.MsgspecError:
        return None
    return number if 0 <= number < messages else None
