"""A streaming query in a simulated world: `GroupSource` as Spark calls it, without a Spark.

`Query` is Spark's micro-batch engine (`MicroBatchExecution`): its checkpoint, and a sink that takes each batch once, as
a table that knows the last batch of a query. `Programs` are the Python processes that Spark starts for it.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import anyio
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from kzconsumer.logs import setup
from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Create, Operation, SetData
from kzconsumer_spark import GroupSource
from kzconsumer_spark.executors import fetching
from kzconsumer_spark.source import group_source, query_member
from kzconsumer_spark.source.group_source import GroupStreamReader
from tests.support.simulated.blocking import Killed, Portal, Program
from tests.support.simulated.group import SimulatedGroup
from tests.support.simulated.member import GROUP
from tests.support.simulated.network import CONNECT

COLUMNS: Final = (
    StructType()
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("key", BinaryType())
)
OPTIONS: Final = {"zookeeper.connect": CONNECT, "group.id": GROUP, "topics": "t"}

Row = tuple[TopicPartition, int, bytes]
"""Partition, offset, key."""


class Programs:
    """The present program has all blocking calls. Made by `programs_in`."""

    def __init__(self, group: SimulatedGroup) -> None:
        self.group = group
        self.started: list[Program] = []
        self.on_term: list[Callable[[], object]] = []
        """Handlers of SIGTERM."""
        self._sockets: dict[str, Callable[[dict[str, Any]], object]] = {}
        self.start()

    @property
    def present(self) -> Program:
        return self.started[-1]

    def start(self) -> Program:
        """A new one, which has all blocking calls from now on."""
        self.started.append(Program(self.group, f"spark{len(self.started)}"))
        return self.started[-1]

    def announce(self, end: dict[str, Any]) -> None:
        """As the listener `PromptCommits` does."""
        if (receive := self._sockets.get(end["socket"])) is not None:
            receive(end)

    @asynccontextmanager
    async def committed_ends(self, take: Callable[[dict[str, Any]], None]) -> AsyncIterator[str]:
        path = f"/commits/{len(self.started)}"
        loop = asyncio.get_running_loop()
        self._sockets[path] = lambda end: loop.call_soon(take, end)
        yield path
        del self._sockets[path]

    @contextmanager
    def portal(self) -> Iterator[Portal]:
        with self.present.portal() as portal:
            yield portal

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.present.run(function, *arguments)

    def sleep(self, seconds: float) -> None:
        self.present.sleep(seconds)

    def end(self) -> None:
        for program in self.started:
            program.end()

    def check(self) -> None:
        assert not [each.errors for program in self.started for each in program.processes if each.errors]


@contextmanager
def programs_in(group: SimulatedGroup) -> Iterator[Programs]:
    """What blocks in the source and its tasks lets the group's time pass."""
    programs = Programs(group)
    time = SimpleNamespace(sleep=programs.sleep, monotonic=lambda: group.world.now)
    signals = SimpleNamespace(SIGTERM=15, signal=lambda _, handler: programs.on_term.append(handler))
    group.promises.watching = False  # they are those of applications
    with ExitStack() as patches:
        for module, name, new in (
            (anyio, "run", programs.run),
            (fetching, "start_blocking_portal", programs.portal),
            (query_member, "start_blocking_portal", programs.portal),
            (query_member, "committed_ends", programs.committed_ends),
            (query_member, "time", time),
            (group_source, "time", time),
            (group_source, "signal", signals),
            (setup, "configure", lambda *_: None),
        ):
            patches.enter_context(mock.patch.object(module, name, new))
        try:
            yield programs
        finally:
            programs.end()


class Query:
    """See the module. What it holds outlives its programs."""

    def __init__(self, programs: Programs, chance: random.Random | None = None) -> None:
        """`chance`: of tasks that run twice, drivers that are killed before a batch is committed, and listeners."""
        self.planned: list[dict[str, Any]] = []
        """The checkpoint's log of offsets: where each batch ends."""
        self.committed = 0
        """The checkpoint's log of commits: as many batches."""
        self.batches: list[list[Row]] = []
        """In the sink."""
        self.tasks: list[int] = []
        """Of each batch, as it was last planned."""
        self.stops = 0
        """How often it was stopped by a signal."""
        self._programs = programs
        self._chance = chance
        self._paths = GroupPaths(GROUP)
        self._too_early: list[str] = []
        programs.group.ensemble.committed.append(self._stored)

    def reader(self, options: Mapping[str, str]) -> GroupStreamReader:
        """As a driver makes it when the query is started."""
        reader = GroupSource(CaseInsensitiveDict(options)).streamReader(COLUMNS)  # type: ignore[arg-type]
        assert isinstance(reader, GroupStreamReader)
        return reader

    def run(
        self, options: Mapping[str, str], is_over: Callable[[], bool] = lambda: True, *, available_now: bool = False
    ) -> None:
        """Until there is no further batch and it is over, or it is stopped. Raises Killed, KzConsumerError.

        Raises AssertionError if the group's offset passed what the sink has.
        """
        reader = self.reader(options)
        if available_now:
            reader.prepareForTriggerAvailableNow()
        try:
            while len(self.planned) > self.committed or self.plan(reader) or not is_over():
                if len(self.planned) > self.committed:
                    self.execute(reader)
        except SystemExit:
            self.stops += 1
        finally:
            reader.stop()
        assert not self._too_early, self._too_early

    def plan(self, reader: GroupStreamReader) -> bool:
        """Ask for the next batch; false if there is none."""
        start = self.planned[-1] if self.planned else _kept(reader.initialOffset())
        end = _kept(reader.latestOffset(start, ReadMaxRows(1)))
        if end != start:
            self.planned.append(end)
        return end != start

    def rows(self, partition: TopicPartition) -> list[tuple[int, bytes]]:
        """Offset and key of what the sink has of a partition, batch after batch."""
        return [(offset, key) for batch in self.batches for where, offset, key in batch if where == partition]

    def stored(self, partition: TopicPartition) -> int | None:
        """The group's offset."""
        node = self._programs.group.ensemble.tree.nodes.get(self._paths.offset(partition))
        return None if node is None else int(node.data)

    def execute(self, reader: GroupStreamReader) -> None:
        """The batch that is planned and not committed; the sink may have it already."""
        number = self.committed
        start = self.planned[number - 1] if number else _kept(reader.initialOffset())
        tasks = [pickle.loads(pickle.dumps(each)) for each in reader.partitions(start, self.planned[number])]
        self.tasks[number:] = [len(tasks)]
        rows = sorted(row for task in tasks for row in self._read(reader, task))
        if number == len(self.batches):
            self.batches.append(rows)
        assert rows == self.batches[number], "a batch of the checkpoint has other records than before"
        if self._happens(0.1):
            self._programs.present.kill()
            raise Killed
        self.committed += 1
        if self._happens(0.3):
            self._programs.announce(self.planned[number])

    def _read(self, reader: GroupStreamReader, task: InputPartition) -> list[Row]:
        rows = rows_of(reader.read(task))
        if self._happens(0.1):  # Spark runs it again
            assert rows_of(reader.read(task)) == rows
        return rows

    def _happens(self, chance: float) -> bool:
        return self._chance is not None and self._chance.random() < chance

    def _stored(self, _: int, operations: Sequence[Operation]) -> None:
        """Every transaction that ZooKeeper executed."""
        for each in operations:
            for partition in self._programs.group.logs.partitions:
                if isinstance(each, Create | SetData) and each.path == self._paths.offset(partition):
                    reached = max((offset + 1 for offset, _ in self.rows(partition)), default=0)
                    if int(each.data) > reached:
                        self._too_early.append(f"{partition} is committed at {each.data!r}, the sink has {reached}")


def rows_of(batches: Iterable[Any]) -> list[Row]:
    """Of Arrow record batches with the columns `COLUMNS`."""
    return [
        (TopicPartition(row["topic"], row["partition"]), row["offset"], row["key"])
        for batch in batches
        for row in batch.to_pylist()
    ]


def _kept(offset: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint keeps it."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found
