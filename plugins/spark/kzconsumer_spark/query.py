"""The streaming query of the worker: batches go in as control files, foreachBatch runs them, outcomes come out.

Owns the query, its control directory and its checkpoint, all of them scratch. The worker's main thread calls `run`;
foreachBatch runs in a thread of py4j meanwhile. After a failure the query is over and the worker makes a new one.
Only a call of foreachBatch with exactly the ranges asked for is the outcome of a batch.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Row, SparkSession

from kzconsumer_spark.control_stream import NAME, WAKE, control_file
from kzconsumer_spark.destinations import Written
from kzconsumer_spark.messages import Done, Failed, RunBatch, SpooledRange, encode
from kzconsumer_spark.tracebacks import Tracebacks

_LOOK_SECONDS = 0.5


Write: TypeAlias = Callable[[int, Sequence[SpooledRange]], Written]


class RangeQuery:
    """A started query; `next_batch` is the number of the only batch that `run` takes next."""

    def __init__(self, session: SparkSession, directory: Path, next_batch: int, tracebacks: Tracebacks) -> None:
        self.next_batch = next_batch
        self._tracebacks = tracebacks
        self._control = directory / "control"
        self._control.mkdir(parents=True)
        os.mkfifo(self._control / WAKE)
        self._wake = os.open(self._control / WAKE, os.O_RDWR | os.O_NONBLOCK)
        self._outcomes: queue.SimpleQueue[Done | Failed] = queue.SimpleQueue()
        self._running: tuple[RunBatch, Write] | None = None
        stream = session.readStream.format(NAME).option("directory", str(self._control)).option("after", next_batch - 1)
        self._query = (
            stream.load()
            .writeStream.foreachBatch(self._foreach_batch)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )

    def __repr__(self) -> str:
        return f"RangeQuery({'running' if self._running else 'waiting for'} batch {self.next_batch})"

    def run(self, batch: RunBatch, write: Write) -> Done | Failed:
        """Have Spark run a batch by `write`; returns when foreachBatch has returned or the query is over."""
        assert batch.number == self.next_batch
        self._running = batch, write
        file = control_file(self._control, batch.number)
        temporary = file.with_suffix(".new")
        temporary.write_bytes(encode(batch))
        temporary.rename(file)
        os.write(self._wake, b"!")
        try:
            return self._outcome(batch.number)
        finally:
            self._running = None
            self.next_batch += 1
            control_file(self._control, batch.number - 1).unlink(missing_ok=True)

    def stop(self) -> None:
        os.write(self._wake, b"!")  # a read that waits would hold the stop up
        self._query.stop()
        os.close(self._wake)

    def _foreach_batch(self, control: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        rows = control.collect()
        if not rows:
            return  # Spark begins a query with an empty batch. Nobody asked for it: it is the outcome of nothing.
        running = self._running
        number = rows[0]["batch"]
        try:
            if running is None or [number, *running[0].ranges] != [running[0].number, *map(_spooled, rows)]:
                raise RuntimeError(f"Spark runs batch {number}, which is not what was asked for")
            written = running[1](number, running[0].ranges)
        except BaseException as error:
            self._tracebacks.tell(number, error)
            self._outcomes.put(Failed(number=number, error=first_line(error)))
            raise
        self._outcomes.put(Done(number=number, seconds=time.monotonic() - began, **written._asdict()))

    def _outcome(self, number: int) -> Done | Failed:
        while True:
            active = self._query.isActive  # asked first: an outcome may come between the two
            try:
                return self._outcomes.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if not active:
                    error = self._query.exception()
                    return Failed(number=number, error=first_line(error) if error else "the query ended")


def first_line(error: BaseException) -> str:
    """What an operator needs of an exception in one line: its kind, its text, and the last cause of a Java stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    said = " ".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *causes[-1:]])
    return said if len(said) <= 1000 else f"{said[:997]}..."


def _spooled(row: Row) -> SpooledRange:
    fields = row.asDict()
    del fields["batch"]
    return SpooledRange(**fields)
