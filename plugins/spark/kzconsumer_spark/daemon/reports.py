"""What the sink reports to an operator: what the destination holds, and what it would write of given records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import anyio
import anyio.to_thread
import msgspec

from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.sinks.interface import Batch
from kzconsumer.sinks.reports import Preview
from kzconsumer_files.holdings import Held
from kzconsumer_files.names import NotOurs
from kzconsumer_spark.daemon.destination import ClaimedDestination
from kzconsumer_spark.daemon.directories import Directories, make_directories
from kzconsumer_spark.daemon.holdings import finish as finish_decided
from kzconsumer_spark.daemon.holdings import held_by
from kzconsumer_spark.daemon.options import WHERE, SparkOptions
from kzconsumer_spark.daemon.spool import write_spool
from kzconsumer_spark.daemon.worker_process import end_session, worker_environment
from kzconsumer_spark.pipe.messages import Failed, PreviewRequest, Start


def held(
    destination: ClaimedDestination,
    find: Callable[[], None],
    options: SparkOptions,
    *,
    finish: bool,
    count_rows: bool,
) -> Held:
    """What the destination holds once `find` has found it. Blocks. With `finish` decisions are carried out first.

    Raises SinkError.
    """
    try:
        find()
        if finish:
            finish_decided(destination.to)
        return held_by(destination.to, options.columns.quarantine, count_rows)
    except (NotOurs, OSError) as error:
        raise SinkError(f"{WHERE}: {error}") from error


async def preview(batch: Batch, options: SparkOptions, start: Callable[[Directories, str, int], Start]) -> Preview:
    """Have a Spark process of its own shape the batch. Raises ConfigError, SinkError."""
    directories = await anyio.to_thread.run_sync(make_directories, options)
    try:
        ranges = await anyio.to_thread.run_sync(write_spool, directories.spool, batch.ranges)
        alone = msgspec.structs.replace(
            start(directories, str(directories.scratch / "preview"), 0), ui=False, event_log=None
        )
        if options.executors_fetch:  # they would not see the spool
            alone = msgspec.structs.replace(alone, master="local[2]")
        request = PreviewRequest(start=alone, ranges=ranges)
        with anyio.fail_after(options.start_timeout):
            return await run_preview(request, worker_environment(options.conf))
    except TimeoutError as error:
        raise SinkError(f"Spark was not done within {options.start_timeout:g} s (start_timeout)") from error
    except OSError as error:
        raise SinkError(f"cannot write spool files for Spark: {error}") from error
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(directories.remove)


async def run_preview(request: PreviewRequest, environment: Mapping[str, str]) -> Preview:
    """Raises ConfigError for settings that Spark refuses, SinkError with a reason."""
    command = [sys.executable, "-m", "kzconsumer_spark.worker.preview"]
    async with await anyio.open_process(command, stderr=None, env=environment, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            await process.stdin.send(msgspec.json.encode(request))
            await process.stdin.aclose()
            said = b"".join([part async for part in process.stdout])
        except OSError as error:
            raise SinkError("the Spark process died") from error
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(end_session, process.pid)
    try:
        return msgspec.json.decode(said, type=Preview)
    except msgspec.DecodeError:
        pass
    try:
        failed = msgspec.json.decode(said, type=Failed)
    except msgspec.DecodeError as error:
        raise SinkError("the Spark process died") from error
    if failed.settings:
        raise ConfigError([failed.error])
    raise SinkError(failed.error)
