"""The streaming query whose foreachBatch writes batches.

Its source is a clock that is always one tick ahead and that is never read: so the next call of foreachBatch is planned
already when a batch comes, and an idle query costs nothing. Records do not pass through it, and its checkpoint is
scratch. After a failure the query ends and the worker makes a new one.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from kzconsumer_files.writer import Written
from kzconsumer_spark.pipe.messages import Done, Failed, RunBatch, SpooledRange
from kzconsumer_spark.worker.tracebacks import Tracebacks

_LOOK_SECONDS = 0.5


Write: TypeAlias = Callable[[int, Sequence[SpooledRange]], Written]


class RangeQuery:
    """A started query; `next_batch` is the number of the only batch that `run` takes next."""

    def __init__(self, session: SparkSession, directory: Path, next_batch: int, tracebacks: Tracebacks) -> None:
        self.next_batch = next_batch
        self._tracebacks = tracebacks
        self._asked: queue.SimpleQueue[tuple[RunBatch, Write] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Done | Failed] = queue.SimpleQueue()
        clock = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1)
        self._query = (
            clock.load()
            .writeStream.foreachBatch(self._foreach_batch)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )

    def run(self, batch: RunBatch, write: Write) -> Done | Failed:
        """Have Spark run a batch by `write`; returns when that is over, or the query without having begun it."""
        assert batch.number == self.next_batch
        self.next_batch += 1
        self._asked.put((batch, write))
        while True:
            active = self._query.isActive  # asked first: an outcome may come between the two
            try:
                return self._outcomes.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if not active and self._withdrawn():
                    error = self._query.exception()
                    return Failed(number=batch.number, error=first_line(error) if error else "the query ended")

    def stop(self) -> None:
        self._asked.put(None)
        self._query.stop()

    def _withdrawn(self) -> bool:
        """Take the batch back if foreachBatch has not begun it; one that runs is waited for, even after the query."""
        try:
            return self._asked.get_nowait() is not None
        except queue.Empty:
            return False

    def _foreach_batch(self, tick: DataFrame, number_of_tick: int) -> None:
        asked = self._asked.get()
        if asked is None:
            self._asked.put(None)  # Spark may call once more before it has stopped
            return
        batch, write = asked
        began = time.monotonic()
        try:
            written = write(batch.number, batch.ranges)
        except BaseException as error:
            self._tracebacks.report(batch.number, error)
            self._outcomes.put(Failed(number=batch.number, error=first_line(error)))
            raise
        self._outcomes.put(Done(number=batch.number, seconds=time.monotonic() - began, **written._asdict()))


def first_line(error: BaseException) -> str:
    """What an operator needs of an exception in one line: its kind, its text, and the last cause of a Java stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    said = " ".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *causes[-1:]])
    return said if len(said) <= 1000 else f"{said[:997]}..."
