"""One sink of a random speed, fed by random sources: how long does a partition that has records wait for some of them?

The queues, the batch builder and the sink's runner are the product's; brokers, the sink and time are simulated. Each
broker answers one request after the other, with what has room in a response, as the product's fetchers have it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Self

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.records.forms import Unfetched
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.interface import Batch
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.streams.chunk_queue import ByteBudget, ChunkQueue
from tests.support.owned_ranges import Owned
from tests.support.simulated.virtual_time import World, clock_of

KB = 1000
RECORD = KB
"""Bytes of each."""
LASTS = 60.0
"""Seconds of a schedule."""


class Sized(Unfetched):
    """Records of which only number and size count."""

    @property
    def nbytes(self) -> int:
        return len(self) * RECORD


@dataclass(eq=False)
class Source:
    """One partition."""

    progress: Progress
    queue: ChunkQueue
    rate: float
    """Records per second that are produced."""
    backlog: int
    """Records in the log at the beginning."""
    fetched: int = 0
    waits_since: float | None = None
    """When the oldest record that is not written was due to be: after the last progress, or after it was produced."""
    worst: float = 0.0

    def end(self, passed: float) -> int:
        return self.backlog + int(self.rate * passed)

    def look(self, now: float, passed: float) -> None:
        """To be called often: notes how long it has been waiting."""
        if self.end(passed) <= self.progress.processed:
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = now
        else:
            self.worst = max(self.worst, now - self.waits_since)


@dataclass
class Feed:
    """A schedule, determined by its seed."""

    seed: int
    worst: float = 0.0
    """The longest wait of a partition, in seconds."""
    bound: float = 0.0
    """What the design allows."""
    sources: list[Source] = field(default_factory=list)

    def play(self) -> Self:
        world = World(self.seed)
        process = world.process("sink")
        with clock_of(world):
            task = process.create_task(self._play(world))
            world.pass_time(LASTS + 60, task.done)
            task.result()
            world.end(process)
        self.worst = max(source.worst for source in self.sources)
        return self

    async def _play(self, world: World) -> None:
        choose = Random(self.seed)
        sink = SlowSink(choose.choice((50, 200, 1000)) * KB)
        total, limit = ByteBudget(1000 * KB), choose.choice((100, 400)) * KB
        queues = [ChunkQueue(limit, total) for _ in range(choose.randint(1, 4))]
        limits = BatchSettings(
            max_records=choose.choice((50, 500)), max_bytes=choose.choice((100, 400)) * KB, max_time=0.5
        )
        chunk = choose.choice((10, 50))
        for number in range(choose.randint(2, 8)):
            progress = Progress(TopicPartition(f"t{number}", number), 0)
            always = number == 0 or choose.random() < 0.3
            rate = sink.rate * choose.choice((0.01, 0.1, 1.0)) / RECORD
            self.sources.append(Source(progress, choose.choice(queues), rate, 10**6 if always else 0))
        brokers = choose.randint(1, 3)
        response = 4 * chunk
        runner = SinkRunner("slow", sink, limits, Owned([source.progress for source in self.sources]))
        runner.feed(queues)
        began = world.now
        tasks = [asyncio.create_task(runner.run())]
        for broker in range(brokers):
            latency = choose.choice((0.001, 0.05, 0.2))
            mine = self.sources[broker::brokers]
            tasks.append(asyncio.create_task(self._fetch(world, began, broker, mine, chunk, response, latency)))
        while world.now - began < LASTS:
            await asyncio.sleep(0.1)
            for source in self.sources:
                if source.progress.processed != sink.written.get(source.progress.topic_partition, 0):
                    sink.written[source.progress.topic_partition] = source.progress.processed
                    source.waits_since = None
                source.look(world.now, world.now - began)
        self.bound = allowed(limits, limit, response, chunk, len(self.sources), sink.rate)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _fetch(
        self, world: World, began: float, broker: int, sources: list[Source], chunk: int, response: int, latency: float
    ) -> None:
        """A broker's fetcher: those that were served are asked for last, a full queue leaves its partitions out."""
        order = list(sources)
        while True:
            asked = [source for source in order if source.queue.has_room_for(broker)]
            await asyncio.sleep(latency)
            left = response
            for source in asked:
                first = source.fetched
                until = min(source.end(world.now - began), first + min(chunk, left))
                if until <= first:
                    continue
                left -= until - first
                size = (until - first) * RECORD
                records = Sized(first, until)
                source.queue.reserve(size, broker)
                source.queue.put(Chunk(source.progress, first, until, records, size, broker=broker))
                source.fetched = until
                order.remove(source)
                order.append(source)
            if left == response:
                await asyncio.sleep(0.01)


class SlowSink:
    """Writes `rate` bytes a second."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.written: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def write(self, batch: Batch) -> None:
        await asyncio.sleep(sum(part.until - part.first for part in batch.ranges) * RECORD / self.rate)


def allowed(limits: BatchSettings, queue: int, response: int, chunk: int, partitions: int, rate: int) -> float:
    """Seconds that a partition may wait, by what may be ahead of its first record, and the sink's rate.

    Ahead of it are: what fills its queue so that it is not fetched, with the responses by which it may be exceeded;
    the batch being written and the one collected; one chunk of each other partition, in the batch that it is in.
    """
    records, size = limits.most("columns")
    batch = min(records * RECORD, size) + chunk * RECORD
    ahead = queue + 3 * response * RECORD + 3 * batch + partitions * chunk * RECORD
    return ahead / rate + limits.max_time + 1.0
