"""The gain from spooling the next batch while Spark writes the current one: the same batches with and without.

`python -m tests.bench.bench_prepare`: one Spark and a sink runner fed from memory, so that fetching costs nothing and
only spooling can overlap. Takes a minute or two.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from pathlib import Path

import anyio
import pyarrow as pa

from kzconsumer.clock import now
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.records.columns import SCHEMA
from kzconsumer.records.forms import ColumnRecords
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.interface import Batch, SinkContext
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.streams.chunk_queue import ChunkQueue
from kzconsumer_spark.daemon.sink import SparkSink
from tests.support.owned_ranges import Owned

BATCHES = 5
REPETITIONS = 2
PARTITIONS = 2


class WithoutPreparing:
    """The sink without `prepare`."""

    def __init__(self, sink: SparkSink) -> None:
        self._sink = sink
        self.spool = 0.0

    async def __aenter__(self) -> WithoutPreparing:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def write(self, batch: Batch) -> None:
        await self._sink.write(batch)
        self.spool += float(str(self._sink.last_batch["spool"]))


class Preparing(WithoutPreparing):
    async def prepare(self, batch: Batch) -> None:
        await self._sink.prepare(batch)


def chunk_of(progress: Progress, first: int, rows: int, value: bytes) -> Chunk:
    until = first + rows
    columns = {
        "topic": pa.array([progress.topic_partition.topic] * rows).cast(SCHEMA.field("topic").type),
        "partition": pa.array([progress.topic_partition.partition] * rows, pa.int32()),
        "offset": pa.array(range(first, until), pa.int64()),
        "timestamp": pa.array([1_700_000_000_000] * rows, pa.int64()).cast(SCHEMA.field("timestamp").type),
        "timestamp_type": pa.array([0] * rows).cast(SCHEMA.field("timestamp_type").type),
        "key": pa.nulls(rows, SCHEMA.field("key").type),
        "value": pa.array([value] * rows, SCHEMA.field("value").type),
        "headers": pa.array([[]] * rows, SCHEMA.field("headers").type),
    }
    batch = pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    return Chunk(progress, first, until, ColumnRecords(batch), batch.nbytes)


async def run(sink: WithoutPreparing, rows: int, value: bytes, topic: str) -> float:
    """Seconds for all batches with so many rows."""
    owned = [Progress(TopicPartition(topic, n), 0, incarnation=1) for n in range(PARTITIONS)]
    part = rows // PARTITIONS
    queue = ChunkQueue(1 << 40)
    for number in range(BATCHES):
        for progress in owned:
            chunk = chunk_of(progress, number * part, part, value)
            queue.reserve(chunk.size)
            queue.put(chunk)
    runner = SinkRunner("spark", sink, BatchSettings(max_records=rows, max_bytes=1 << 40, max_time=600.0), Owned())
    runner.feed([queue])
    async with anyio.create_task_group() as tasks:
        began = now()
        tasks.start_soon(runner.run)
        while any(progress.processed < BATCHES * part for progress in owned):
            await anyio.sleep(0.005)
        seconds = now() - began
        await runner.stop(10)
    return seconds


async def main() -> None:
    print("value  rows a batch  way      seconds a batch (median of runs)  of it spool")
    with tempfile.TemporaryDirectory() as folder:
        options = {"destination": "parquet", "path": str(Path(folder, "out")), "scratch": str(Path(folder, "scratch"))}
        context = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)
        async with SparkSink(options, context) as spark:
            for size, rows in ((100, 250_000), (1024, 60_000)):
                value = bytes(n * 7 % 251 for n in range(size))
                await run(WithoutPreparing(spark), rows, value, f"warm-{size}")
                taken: dict[str, list[float]] = {"apart": [], "ahead": []}
                spool: dict[str, float] = {}
                for repetition in range(REPETITIONS):
                    for way, sink in (("apart", WithoutPreparing(spark)), ("ahead", Preparing(spark))):
                        seconds = await run(sink, rows, value, f"{way}-{size}-{repetition}")
                        taken[way].append(seconds / BATCHES)
                        spool[way] = sink.spool / BATCHES
                for way, each in taken.items():
                    runs = " ".join(f"{seconds:.3f}" for seconds in each)
                    print(f"{size:5}  {rows:12,}  {way:7}  {statistics.median(each):.3f} ({runs})  {spool[way]:.3f}")


if __name__ == "__main__":
    anyio.run(main)
