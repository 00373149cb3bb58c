"""Has Spark count what arrived, in a process of its own.

Owns that process. `scenario` calls `count` when the members and the servers are gone: the files have to stand alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from anyio import to_thread

from kzconsumer.demo.count import Counted
from kzconsumer.demo.failure import DemoFailed
from kzconsumer.sandbox.failure import SandboxError
from kzconsumer.sandbox.server_process import ServerProcess

_LIMIT = 300.0


async def count(path: Path, messages: int, folder: Path) -> Counted:
    """Count the Parquet files under `path`; `folder` takes the log and Spark's scratch. Raises DemoFailed."""
    process = _Counting(path, messages, folder)
    process.start()
    try:
        await to_thread.run_sync(process.wait_ended, _LIMIT, abandon_on_cancel=True)
    except SandboxError as error:
        raise DemoFailed(f"Spark does not count: {error}") from None
    finally:
        process.kill()
    for line in reversed(process.last_lines().splitlines()):
        try:
            return msgspec.json.decode(line, type=Counted)
        except msgspec.MsgspecError:
            continue
    raise DemoFailed(f"Spark could not count the records; see {process.log}")


class _Counting(ServerProcess):
    def __init__(self, path: Path, messages: int, folder: Path) -> None:
        super().__init__("counting", folder)
        self._arguments = [str(path), str(messages)]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "kzconsumer.demo.count", *self._arguments]
