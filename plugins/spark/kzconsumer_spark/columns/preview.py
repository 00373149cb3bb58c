"""The daemon's side of a look at records: one Spark process that shapes one batch, prints the frame and ends.

Owns the process while it runs. `sink` calls `run_preview`; `preview_process` is the other side.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import anyio
import anyio.to_thread
import msgspec

from kzconsumer.errors import ConfigError, SinkFailed
from kzconsumer.sinks.reports import Preview
from kzconsumer_spark.messages import Failed, SpooledRange, Start
from kzconsumer_spark.worker_process import end_session


class PreviewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All that the process is told, as JSON on its standard input."""

    start: Start
    ranges: tuple[SpooledRange, ...]


async def run_preview(request: PreviewRequest, environment: Mapping[str, str]) -> Preview:
    """Raises ConfigError for what Spark finds wrong in the settings, SinkFailed with a reason."""
    command = [sys.executable, "-m", "kzconsumer_spark.columns.preview_process"]
    async with await anyio.open_process(command, stderr=None, env=environment, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            await process.stdin.send(msgspec.json.encode(request))
            await process.stdin.aclose()
            said = b"".join([part async for part in process.stdout])
        except OSError as error:
            raise SinkFailed("the Spark process died") from error
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
        raise SinkFailed("the Spark process died") from error
    if failed.settings:
        raise ConfigError([failed.error])
    raise SinkFailed(failed.error)
