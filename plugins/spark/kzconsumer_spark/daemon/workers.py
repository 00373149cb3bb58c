"""The worker process that the sink uses at the moment: started, kept informed of the lease, replaced after it died."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import msgspec

from kzconsumer.errors import SinkError
from kzconsumer.logs.logger import get_logger
from kzconsumer_spark.daemon.options import SparkOptions
from kzconsumer_spark.daemon.worker_process import END_SECONDS, WorkerDied, WorkerProcess
from kzconsumer_spark.pipe.messages import Start

_HEARTBEAT_SECONDS = 1.0
_log = get_logger("kzconsumer.spark")


class Workers:
    """At most one worker at a time, while this is entered."""

    def __init__(
        self,
        options: SparkOptions,
        environment: Mapping[str, str],
        scratch: Path,
        start: Callable[[str, int], Start],
        safe_until: Callable[[], float],
    ) -> None:
        """`start` makes the first message to a worker, of its directory and the number of its first batch."""
        self._options = options
        self._environment = environment
        self._scratch = scratch
        self._start = start
        self._safe_until = safe_until
        self.worker: WorkerProcess | None = None

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
            await anyio.sleep(pause)
        raise SinkError(f"Spark did not start in {self._options.attempts} attempts: {reason}") from reason

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
        _log.info("spark starting", master=start.master, log=log)
        try:
            with anyio.fail_after(self._options.start_timeout):
                self.worker = await WorkerProcess.open(start, self._environment, self._tasks)
        except TimeoutError as error:
            limit = f"{self._options.start_timeout:g} s"
            raise WorkerDied(
                f"Spark was not ready within {limit}: too little CPU? ([sink.options] start_timeout)"
            ) from error
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
