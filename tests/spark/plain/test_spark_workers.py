"""Worker processes that do not start."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import SinkError
from kzconsumer_spark.daemon.destination_options import read_options
from kzconsumer_spark.daemon.workers import Workers
from kzconsumer_spark.pipe.messages import Start, ToFiles

CANNOT_START = {"TOO_LONG": "x" * (1 << 22)}
"""An environment that the kernel refuses: an error of the same call as that of a machine without memory."""


async def test_a_worker_that_dies_while_it_starts_gets_the_attempts_of_a_batch(tmp_path: Path) -> None:
    options = read_options({"destination": "parquet", "path": "/d", "attempts": 4, "retry_backoff": "1ms"})

    def start(directory: str, next_batch: int) -> Start:
        return Start(
            scratch=directory,
            master="local[1]",
            conf={},
            destination=ToFiles(path="/d"),
            next_batch=next_batch,
            safe_until=0.0,
        )

    with capture_logs() as logs, pytest.raises(SinkError, match="did not start in 4 attempts: "):
        async with Workers(options, CANNOT_START, tmp_path, start, lambda: 0.0) as workers:
            await workers.start_first(1)
    assert [each["attempt"] for each in logs if each["event"] == "spark start failed"] == [1, 2, 3, 4]
