"""Worker processes that do not start, and what the sink makes of their answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import DestinationWentBackError, SinkError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.steps import Steps
from kzconsumer.testing.sink_contract import contract_context
from kzconsumer_spark.daemon.destination_options import read_options
from kzconsumer_spark.daemon.sink import SparkSink
from kzconsumer_spark.daemon.workers import Workers
from kzconsumer_spark.pipe.messages import Event, Failed, RunBatch, Start, ToFiles, decode_event, encode

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


async def test_a_destination_that_went_back_is_not_tried_again(tmp_path: Path) -> None:
    lost = RangeIdentity("t", 0, -5, 1, 6, 9)
    answers: list[Event] = []

    class Lacking(SparkSink):
        async def _attempt(self, batch: RunBatch, steps: Steps | None) -> Failed | None:
            answers.append(decode_event(encode(Failed(number=1, error="no", lacks=lost, ends=3))))
            (*_, last) = answers
            assert isinstance(last, Failed)
            return last

    sink = Lacking({"destination": "parquet", "path": str(tmp_path)}, contract_context())
    with pytest.raises(DestinationWentBackError, match=r"^parquet files in .*: t-0: offsets 3 to 9 were ") as raised:
        await sink._run(RunBatch(number=1, ranges=()), None)
    assert (raised.value.lacking, raised.value.ends, len(answers)) == (lost, 3, 1)
