"""A daemon with a Spark sink that kills itself (SIGKILL) between the plan of its first batch and the commit.

`python -m tests.support.killed_daemon` takes the arguments of `kzconsumer`; the environment's `POINT` says where.
"""

from __future__ import annotations

import os
import signal
from typing import Literal, TypeAlias

import pytest

import kzconsumer_spark.daemon.sink as spark_sink
from kzconsumer.cli.main import main
from kzconsumer.sinks.interface import Batch
from kzconsumer_spark.worker_protocol.messages import RangesRead, Recorded, StepDone

Point: TypeAlias = Literal["planned", "read", "step done", "written"]
"""After: the plan is stored; it has what was read, and the worker has no batch yet; a step is done; all is written."""
POINT = "KZCONSUMER_TEST_KILLED_AT"


def _reached(point: Point) -> None:
    if os.environ[POINT] == point:
        os.kill(os.getpid(), signal.SIGKILL)


def _prepare(patch: pytest.MonkeyPatch) -> None:
    write, recorded = spark_sink.SparkSink.write, spark_sink.recorded

    async def killed_in_write(self: spark_sink.SparkSink, batch: Batch) -> None:
        _reached("planned")
        await write(self, batch)
        _reached("written")

    async def killed_in_recorded(event: StepDone | RangesRead, batch: Batch) -> Recorded:
        answer = await recorded(event, batch)
        _reached("read" if isinstance(event, RangesRead) else "step done")
        return answer

    patch.setattr(spark_sink.SparkSink, "write", killed_in_write)
    patch.setattr(spark_sink, "recorded", killed_in_recorded)


if __name__ == "__main__":
    _prepare(pytest.MonkeyPatch())
    raise SystemExit(main())
