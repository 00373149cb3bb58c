"""The streaming query of the worker: batches go in as control files, foreachBatch runs them, outcomes come out.

Owns the query, its control directory and its checkpoint, all of them scratch. The worker's main thread calls `run`;
foreachBatch runs in a thread of py4j meanwhile. After a failure the query is over and the worker makes a new one.
"""

from __future__ import annotations

import os
import queue
import time
import traceback
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from kzconsumer_spark.control_stream import NAME, WAKE, control_file
from kzconsumer_spark.destinations import Destination
from kzconsumer_spark.lease import Lease
from kzconsumer_spark.messages import Done, Failed, RunBatch, SpooledRange, encode

_LOOK_SECONDS = 0.5


class RangeQuery:
    """A started query; `next_batch` is the number of the first batch that will be given to `run`."""

    def __init__(
        self, session: SparkSession, destination: Destination, lease: Lease, directory: Path, next_batch: int
    ) -> None:
        self._destination = destination
        self._lease = lease
        self._control = directory / "control"
        self._control.mkdir(parents=True)
        os.mkfifo(self._control / WAKE)
        self._wake = os.open(self._control / WAKE, os.O_RDWR | os.O_NONBLOCK)
        self._outcomes: queue.SimpleQueue[Done | Failed] = queue.SimpleQueue()
        self._running: int | None = None
        stream = session.readStream.format(NAME).option("directory", str(self._control)).option("after", next_batch - 1)
        self._query = (
            stream.load()
            .writeStream.foreachBatch(self._foreach_batch)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )

    def __repr__(self) -> str:
        return f"RangeQuery(running batch {self._running})"

    def run(self, batch: RunBatch) -> Done | Failed:
        """Have Spark run a batch; returns when foreachBatch has returned or the query is over."""
        self._running = batch.number
        file = control_file(self._control, batch.number)
        temporary = file.with_suffix(".new")
        temporary.write_bytes(encode(batch))
        temporary.rename(file)
        os.write(self._wake, b"!")
        try:
            while True:
                try:
                    return self._outcomes.get(timeout=_LOOK_SECONDS)
                except queue.Empty:
                    if not self._query.isActive:
                        return self._last_outcome(batch.number)
        finally:
            self._running = None
            control_file(self._control, batch.number - 1).unlink(missing_ok=True)

    def stop(self) -> None:
        os.write(self._wake, b"!")  # a read that waits would hold the stop up
        self._query.stop()
        os.close(self._wake)

    def _foreach_batch(self, control: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        rows = control.collect()
        ranges = [_spooled(row.asDict()) for row in rows]
        number = self._running
        try:
            if number is None or any(row["batch"] != number for row in rows):
                raise RuntimeError(f"Spark runs batch {rows[0]['batch'] if rows else '?'}, {number} is asked for")
            self._lease.require()
            written = self._destination.write(number, ranges)
        except BaseException as error:
            traceback.print_exc()
            self._outcomes.put(Failed(number=number, error=first_line(error)))
            raise
        self._outcomes.put(Done(number=number, seconds=time.monotonic() - began, **written._asdict()))

    def _last_outcome(self, number: int) -> Done | Failed:
        try:
            return self._outcomes.get_nowait()
        except queue.Empty:
            error = self._query.exception()
            return Failed(number=number, error=first_line(error) if error else "the query ended")


def first_line(error: BaseException) -> str:
    """What an operator needs of an exception in one line: its kind, its text, and the last cause of a Java stack."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    said = " ".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *causes[-1:]])
    return said if len(said) <= 1000 else f"{said[:997]}..."


def _spooled(row: dict[str, object]) -> SpooledRange:
    del row["batch"]
    return SpooledRange(**row)  # type: ignore[arg-type]
