"""The Spark sink as the daemon sees it: spool a batch, have the worker run it, try again, or say why not.

Owns the scratch directory, the worker process and the batch numbers. An entry point of `kzconsumer.sinks`. The event
loop never waits for py4j or the JVM, and a dead worker does not cost the membership. It never imports a Spark session.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import anyio
import anyio.to_thread
import msgspec
import structlog

from kzconsumer.errors import ConfigError, PluginError, SinkFailed, ZooKeeperError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import Batch, SinkContext
from kzconsumer.sinks.reports import Holdings, Preview
from kzconsumer.sinks.steps import StepNotRecorded, Steps
from kzconsumer_files.names import NotOurs, Owner, fingerprint, scope
from kzconsumer_files.overlap import Overlap
from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_spark.columns.preview import PreviewRequest, run_preview
from kzconsumer_spark.columns.schemas import check_files
from kzconsumer_spark.daemon_holdings import described, finish, held_by
from kzconsumer_spark.daemon_side import DaemonSide, daemon_side
from kzconsumer_spark.java import java_environment
from kzconsumer_spark.messages import Done, Failed, RunBatch, Start, StepDone, StepRecorded
from kzconsumer_spark.options import WHERE, read_options, redirected
from kzconsumer_spark.settings import environment_zone, time_zone
from kzconsumer_spark.spool import write_spool
from kzconsumer_spark.spool_place import SpoolPlace, is_object_store
from kzconsumer_spark.spooling import Spooling
from kzconsumer_spark.worker_process import END_SECONDS, WorkerDied, WorkerProcess, finite

_HEARTBEAT_SECONDS = 1.0
_Answer = TypeVar("_Answer")
_log = structlog.get_logger(__name__)


class _Spool(NamedTuple):
    place: SpoolPlace
    remove: Callable[[], None]


class SparkSink:
    """Writes batches through Spark's foreachBatch, in a process of its own.

    Options: `kzconsumer_spark.options.SparkOptions`. Entering starts Spark (about ten seconds) and raises ConfigError
    for a target that is another group's and for what Spark refuses of `conf`, PluginError without Java or PySpark. It
    raises SinkFailed when Spark did not start in as many attempts as a batch has. `write` raises SinkFailed after the
    last attempt. When `write` is cancelled, the worker and its JVM are killed and gone before it
    returns: what was not published by then will not be.
    """

    def __init__(self, options: Mapping[str, object], context: SinkContext) -> None:
        self._options = read_options(options)
        self._context = context
        self._destination = self._checked()
        # Milliseconds, then counted up: a batch_id is never seen twice, also not by a function of an earlier run.
        self._next_batch = time.time_ns() // 1_000_000
        self._worker: WorkerProcess | None = None
        self.last_batch: dict[str, object] = {}
        self._stack = AsyncExitStack()

    def _checked(self) -> DaemonSide:
        """The destination. Raises ConfigError with its faults and those of the files that the options name."""
        faults: list[str] = []
        try:
            check_files(self._options.columns)
        except ValueError as error:
            faults.append(f"{WHERE} {error}")
        try:
            destination = daemon_side(self._options.to)
        except ConfigError as error:
            raise ConfigError([*faults, *error.faults]) from error
        if faults:
            raise ConfigError(faults)
        return destination

    def check(self) -> None:
        """See `kzconsumer.sinks.interface.Checkable`. Raises PluginError without Java or PySpark."""
        _environment(self._options.conf)

    def __repr__(self) -> str:
        return f"SparkSink({self._options.destination}, {self._worker or 'no worker'}, next batch {self._next_batch})"

    async def __aenter__(self) -> Self:
        self._environment = _environment(self._options.conf)
        async with AsyncExitStack() as stack:
            self._scratch, self._spool = await anyio.to_thread.run_sync(self._prepare)
            stack.push_async_callback(anyio.to_thread.run_sync, self._scratch.remove)
            stack.push_async_callback(anyio.to_thread.run_sync, self._spool.remove)
            stack.push_async_callback(self._close_worker)
            await self._start_worker()
            self._stack = stack.pop_all()
        self._heartbeats = await anyio.create_task_group().__aenter__()
        self._heartbeats.start_soon(self._send_heartbeats)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._worker is not None and kind is None:
                await self._worker.stop()
            self._heartbeats.cancel_scope.cancel()
            await self._heartbeats.__aexit__(None, None, None)  # an error of the body is not the group's
        finally:
            with anyio.CancelScope(shield=True):  # each step of it is bounded
                await self._stack.aclose()

    @property
    def start_limit(self) -> float:
        """Seconds: every attempt in vain, the worker's end after each, and a minute for the destination."""
        attempts, backoff = self._options.attempts, self._options.retry_backoff
        pauses = backoff * (2.0 ** min(attempts - 1, 64) - 1)
        return min(60 + attempts * (self._options.start_timeout + END_SECONDS) + pauses, 1e9)

    @property
    def destination(self) -> str:
        """As errors name it."""
        return described(self._destination.to)

    @property
    def fingerprint(self) -> str:
        """The destination's, and of what shapes the rows; empty for what cannot be replayed."""
        found, columns = self._destination.fingerprint, self._options.columns
        shape = () if columns.change_nothing else columns.shape
        zone = time_zone(self._options.conf)
        shape += () if zone == "UTC" else (zone,)
        return fingerprint(found, shape) if found and shape else found

    @property
    def remembers(self) -> bool:
        """See `kzconsumer.offsets.destination.Destination`: a function has no ledger that could be asked."""
        return self._destination.remembers

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        """Those that the destination's ledger has. Raises SinkFailed after the last attempt."""
        return await self._asked(partial(self._destination.has, ranges))

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """See `kzconsumer.sinks.interface.Sink`; of a function nobody can tell. Raises as `has`."""
        return await self._asked(partial(self._destination.set_aside, part, records))

    async def prepare(self, batch: Batch) -> None:
        """Spool the next batch while Spark writes this one. Raises OSError."""
        await self._spooling.prepare(batch.ranges)

    async def write(self, batch: Batch) -> None:
        if not batch.ranges or (not self.fingerprint and not batch.records):
            return
        number = self._next_batch
        self._next_batch += 1
        try:
            spooled = await self._spooling.take(batch.ranges)
        except OSError as error:
            raise SinkFailed(f"cannot write spool files for Spark: {error}") from error
        self.last_batch = {"spark_batch": number, "spool": round(spooled.seconds, 3)}
        try:
            await self._run(RunBatch(number=number, ranges=spooled.files, is_replay=batch.is_replay), batch.steps)
        finally:
            await self._spooling.remove(spooled)

    @staticmethod
    def elsewhere(options: Mapping[str, object], into: str) -> Mapping[str, object]:
        """The same sink with another directory or table; bad records are put aside apart from the group's, too."""
        return redirected(read_options(options), options, into)

    async def holdings(self, *, count_rows: bool) -> Holdings:
        """See `kzconsumer_files.holdings`. Of a sink that is entered what others have decided for is finished first."""
        return await anyio.to_thread.run_sync(self._held, count_rows)

    def _held(self, count_rows: bool) -> Holdings:
        try:
            self._destination.find(self._owner)
            if self._worker is not None:
                finish(self._destination.to)
            ranges, strays, leftovers = held_by(self._destination.to, self._options.columns.quarantine, count_rows)
        except (NotOurs, OSError) as error:
            raise SinkFailed(f"{WHERE}: {error}") from error
        return Holdings(
            destination=described(self._destination.to),
            fingerprint=self.fingerprint,
            ranges=ranges,
            strays=strays,
            leftovers=leftovers,
        )

    async def preview(self, batch: Batch) -> Preview:
        """What would be written, by a Spark of its own, which reads the target as little as it writes it."""
        scratch, spool = await anyio.to_thread.run_sync(self._make_directories)
        try:
            ranges = await anyio.to_thread.run_sync(write_spool, spool.place, batch.ranges)
            directory = str(scratch.path / "preview")
            start = self._start(directory, 0, spool)
            with anyio.fail_after(self._options.start_timeout):
                return await run_preview(PreviewRequest(start=start, ranges=ranges), _environment(self._options.conf))
        except OSError as error:
            raise SinkFailed(f"cannot write spool files for Spark: {error}") from error
        except TimeoutError as error:
            raise SinkFailed(f"Spark was not done within {self._options.start_timeout:g} s (start_timeout)") from error
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(scratch.remove)
                await anyio.to_thread.run_sync(spool.remove)

    async def _asked(self, question: Callable[[], _Answer]) -> _Answer:
        """The ledger's answer: a database may be starting anew. Cancelled, it leaves the thread to its end."""
        reason: OSError | None = None
        for attempt, pause in self._attempts():
            try:
                return await anyio.to_thread.run_sync(question, abandon_on_cancel=True)
            except Overlap as error:  # another attempt would find it, too
                raise SinkFailed(f"{WHERE}: {error}") from error
            except OSError as error:
                reason = error
                _log.warning("ledger of the destination cannot be read", attempt=attempt, error=str(error))
            await anyio.sleep(pause)
        tried = f"{self._options.attempts} attempts"
        raise SinkFailed(f"{WHERE}: the destination's ledger could not be read in {tried}: {reason}") from reason

    def _attempts(self) -> Iterator[tuple[int, float]]:
        """The number of each attempt, and the pause behind it; none behind the last."""
        pause = self._options.retry_backoff
        for attempt in range(1, self._options.attempts):
            yield attempt, pause
            pause *= 2
        yield self._options.attempts, 0.0

    async def _run(self, batch: RunBatch, steps: Steps | None) -> None:
        for attempt, pause in self._attempts():
            if steps is not None:
                batch = msgspec.structs.replace(batch, steps=steps.done)
            reason = await self._attempt(batch, steps)
            if reason is None:
                return
            _log.warning("spark batch failed", batch=batch.number, attempt=attempt, error=reason)
            await anyio.sleep(pause)
        ranges = ", ".join(str(part.range) for part in batch.ranges)
        raise SinkFailed(f"Spark could not write {ranges} in {self._options.attempts} attempts: {reason}")

    async def _attempt(self, batch: RunBatch, steps: Steps | None) -> str | None:
        """Have the batch run once, by a new worker if the last one died; why it failed, or None."""
        try:
            worker = self._worker or await self._open_worker(batch.number)
            await worker.send(batch)
            event = await worker.receive()
            while isinstance(event, StepDone):
                await worker.send(await _recorded(event.step, steps))
                event = await worker.receive()
        except WorkerDied as error:
            await self._close_worker()
            return str(error)
        except BaseException:
            await self._close_worker()
            raise
        if isinstance(event, Done) and event.covers(batch):
            self.last_batch["foreach_batch"] = round(event.seconds, 3)
            return None
        if isinstance(event, Failed):
            return event.error
        raise AssertionError(f"batch {batch.number} answered by {event!r}")

    async def _start_worker(self) -> None:
        """The first worker: it has as many attempts as a batch has, which starts a new one when it dies later.

        Raises SinkFailed after the last attempt, ConfigError at once.
        """
        for attempt, pause in self._attempts():
            try:
                await self._open_worker()
                return
            except WorkerDied as error:
                reason = error
                _log.warning("spark start failed", attempt=attempt, error=str(error))
            await anyio.sleep(pause)
        raise SinkFailed(f"Spark did not start in {self._options.attempts} attempts: {reason}") from reason

    async def _open_worker(self, next_batch: int | None = None) -> WorkerProcess:
        """Raises WorkerDied when Spark does not start or not in time, ConfigError for settings that Spark refuses."""
        directory = Path(self._scratch.path, f"worker-{time.monotonic_ns()}")
        start = self._start(str(directory), self._next_batch if next_batch is None else next_batch, self._spool)
        began = time.monotonic()
        _log.info("spark starting", master=start.master, log=str(directory / "spark.log"))
        try:
            with anyio.fail_after(self._options.start_timeout):
                self._worker = await WorkerProcess.open(start, self._environment)
        except TimeoutError as error:
            raise WorkerDied(f"Spark was not ready within {self._options.start_timeout:g} s") from error
        _log.info(
            "spark ready",
            application=self._worker.application,
            pid=self._worker.pid,
            seconds=round(time.monotonic() - began, 1),
            log=str(directory / "spark.log"),
        )
        return self._worker

    def _start(self, scratch: str, next_batch: int, spool: _Spool) -> Start:
        return Start(
            scratch=scratch,
            spool=spool.place.uri,
            master=self._options.master,
            conf=dict(self._options.conf),
            destination=self._destination.to,
            next_batch=next_batch,
            safe_until=finite(self._context.safe_until()),
            columns=self._options.columns,
            scope=scope(self._context.cluster, self._context.group, "spark"),
        )

    async def _close_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    async def _send_heartbeats(self) -> None:
        while True:
            if self._worker is not None:
                # A dead worker is the next batch's business.
                with contextlib.suppress(WorkerDied):
                    await self._worker.heartbeat(self._context.safe_until())
            await anyio.sleep(_HEARTBEAT_SECONDS)

    @property
    def _owner(self) -> Owner:
        return Owner(cluster=self._context.cluster, group=self._context.group)

    def _prepare(self) -> tuple[PrivateDirectory, _Spool]:
        try:
            self._destination.claim(self._owner)
        except NotOurs as error:
            raise ConfigError([f"{WHERE}: {error}"]) from error
        except OSError as error:
            where = f" {error.filename} cannot be used:" if error.filename else ""
            raise ConfigError([f"{WHERE}:{where} {error.strerror or error}"]) from error
        scratch, spool = self._make_directories()
        self._spooling = Spooling(spool.place)
        return scratch, spool

    def _make_directories(self) -> tuple[PrivateDirectory, _Spool]:
        """One for what this machine alone uses, one for spool files: where these go is said for a cluster."""
        temporary = self._options.scratch or tempfile.gettempdir()
        scratch = _private("scratch", temporary)
        try:
            return scratch, _spool(self._options.spool or temporary, self._options.conf)
        except BaseException:
            scratch.remove()
            raise


async def _recorded(step: str, steps: Steps | None) -> StepRecorded:
    if steps is None:
        return StepRecorded(error=f'step "{step}" is not recorded: the batch is not planned')
    try:
        await steps.record(step)
    except (StepNotRecorded, ZooKeeperError, ValueError) as error:
        return StepRecorded(error=str(error))
    return StepRecorded()


def _spool(where: str, conf: Mapping[str, str]) -> _Spool:
    if is_object_store(where):
        try:
            place = SpoolPlace.in_object_store(where, conf)
        except (OSError, ValueError) as error:
            raise ConfigError([f"{WHERE} spool: {where}: {error}"]) from error
        return _Spool(place, place.remove)
    directory = _private("spool", where)
    return _Spool(SpoolPlace.in_directory(directory.path), directory.remove)


def _private(option: str, path: str) -> PrivateDirectory:
    parent = Path(path).absolute() / f"kzconsumer-spark-{os.getuid()}"
    try:
        sweep(parent)
        return PrivateDirectory(parent)
    except OSError as error:
        raise ConfigError([f"{WHERE} {option}: {error}"]) from error


def _environment(conf: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment: Spark's Python processes are this Python and import what this process can import.

    On a cluster the machines of the executors may have theirs elsewhere. Raises PluginError without Java or PySpark.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise PluginError("kzconsumer-spark: pyspark is not installed: pip install kzconsumer-spark")
    return java_environment(os.environ) | {
        "PYSPARK_PYTHON": conf.get("spark.pyspark.python", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TZ": environment_zone(conf),
        "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
    }
