"""What a function learns about its batch, and how its one-time steps are handled."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kzconsumer.records.checksums import Contents
from kzconsumer.sinks.interface import StepNotRecordedError
from kzconsumer_files.range_names import scope
from kzconsumer_spark.destinations.function_batch import FunctionBatch, function_range, require_done, takes_batch
from kzconsumer_spark.worker.range_writers import FunctionDestination, StepRecorder
from kzconsumer_spark.worker_protocol.messages import BatchRange, RangesRead, Recorded, RunBatch, StepDone

PART = BatchRange(topic="t", partition=3, first=7, until=12, incarnation=0x2A, epoch=1, records=4)
SCOPE = scope("c", "g", "spark")


class Calls:
    """A batch and the calls that it receives."""

    def __init__(self, *done: str, error: Exception | None = None) -> None:
        self.made: list[str] = []
        self.error = error
        self.batch = FunctionBatch(
            [function_range(PART, SCOPE)],
            is_replay=False,
            done=done,
            before_step=lambda: self.made.append("lease"),
            record=self.record,
        )

    def record(self, step: str) -> None:
        if self.error is not None:
            raise self.error
        self.made.append(f"recorded {step}")

    def once(self, step: str) -> bool:
        return self.batch.once(step, lambda: self.made.append(f"did {step}"))


def test_a_token_names_its_range_and_no_other() -> None:
    part = function_range(PART, SCOPE)
    assert part.token == f"{SCOPE}+t+3+2a.1+00000000000000000007+00000000000000000012"
    assert (part.txn_app_id, part.txn_version) == (f"{SCOPE}+t+3+2a.1", 12)
    others: list[dict[str, Any]] = [
        {"topic": "u"},
        {"partition": 4},
        {"first": 8},
        {"until": 13},
        {"incarnation": 1},
        {"epoch": 2},
    ]
    tokens = {function_range(msgspec.structs.replace(PART, **other), SCOPE).token for other in others}
    scopes = {scope("c", "g", "spark"), scope("d", "g", "spark"), scope("c", "h", "spark"), scope("cg", "", "spark")}
    assert len(tokens | {function_range(PART, each).token for each in scopes}) == len(others) + len(scopes)
    assert function_range(msgspec.structs.replace(PART, records=1), SCOPE).token == part.token


def test_a_step_is_done_then_recorded_and_not_done_again() -> None:
    calls = Calls("table")
    assert [calls.once(step) for step in ("table", "index", "index")] == [False, True, False]
    assert calls.made == ["lease", "did index", "recorded index"]
    assert (calls.batch.records, calls.batch.is_replay) == (4, False)


def test_a_step_that_fails_or_is_not_recorded_is_done_again() -> None:
    calls = Calls(error=StepNotRecordedError("gone"))
    with pytest.raises(ZeroDivisionError):
        calls.batch.once("table", lambda: 1 / 0)
    with pytest.raises(StepNotRecordedError):
        calls.once("table")
    calls.error = None
    assert calls.once("table")
    assert calls.made == ["lease", "lease", "did table", "lease", "did table", "recorded table"]


def test_calls_after_the_function_returned_are_refused() -> None:
    calls = Calls()
    with pytest.raises(RuntimeError, match='step "table" was called after'):
        calls.batch.once("table", calls.batch.close)
    with pytest.raises(RuntimeError, match='step "index" was called after'):
        calls.once("index")
    with pytest.raises(ValueError, match="is not the name of a step"):
        calls.once("")
    assert calls.made == ["lease"]


def test_the_daemon_is_asked_and_its_answer_decides() -> None:
    said: list[StepDone | RangesRead] = []
    lost = Recorded(error="no partition of the batch is ours any more")
    answers = [Recorded(), lost, Recorded(), lost]

    def say(event: StepDone | RangesRead) -> None:
        said.append(event)
        recorder.answered(answers.pop(0))

    recorder = StepRecorder(say)
    recorder.begin(RunBatch(number=5, ranges=(PART,)))
    recorder.record("table")
    with pytest.raises(StepNotRecordedError, match="is ours any more"):
        recorder.record("index")
    assert said == [StepDone(number=5, step="table"), StepDone(number=5, step="index")]
    read = Contents(records=4)
    recorder.begin(RunBatch(number=6, ranges=(msgspec.structs.replace(PART, partition=9), PART)))
    recorder.record_read({PART.range.topic_partition: read})
    with pytest.raises(StepNotRecordedError, match="is ours any more"):
        recorder.record_read({})
    assert said[2:] == [RangesRead(number=6, contents=(None, read)), RangesRead(number=6, contents=(None, None))]


def _two(df: object, batch_id: int) -> None: ...
def _three(df: object, batch_id: int, batch: FunctionBatch) -> None: ...
def _named(df: object, batch_id: int, ranges: object) -> None: ...
def _optional(df: object, batch_id: int, batch: FunctionBatch | None = None) -> None: ...
def _other(df: object, batch_id: int, table: str = "t") -> None: ...
def _any(*arguments: object) -> None: ...
def _keyword(df: object, batch_id: int, *, batch: object = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (_two, False),
        (_three, True),
        (_named, True),
        (_optional, True),
        (_other, False),
        (_any, False),
        (_keyword, False),
        (print, False),
    ],
)
def test_a_function_gets_the_batch_if_it_has_a_parameter_for_it(function: Callable[..., object], takes: bool) -> None:
    assert takes_batch(function) is takes


def test_a_function_that_says_no_has_not_written() -> None:
    """As with the sinks of the core. The value of a step is anything: JDBC's `execute` is False after an insert."""
    rows: Any = SimpleNamespace(ranges=(PART,), frame=object(), number=0)
    shaping: Any = SimpleNamespace(
        shape=lambda frame, ranges: SimpleNamespace(frame=frame), has_rows=lambda frame: True
    )
    lease: Any = SimpleNamespace(require=lambda: None)
    steps: Any = SimpleNamespace(batch=SimpleNamespace(is_replay=False, steps=()))
    for takes, says_no in ((_two, lambda df, batch_id: False), (_three, lambda df, batch_id, batch: False)):
        assert FunctionDestination(takes, SCOPE, lease, shaping, steps).write(rows).rows == PART.records
        with pytest.raises(TypeError, match="the function returned False: it returns None once all is written"):
            FunctionDestination(says_no, SCOPE, lease, shaping, steps).write(rows)
    assert Calls().batch.once("insert", lambda: False)


async def _later() -> None: ...


@pytest.mark.parametrize(("make", "kind"), [(_later, "coroutine"), (lambda: (each for each in "ab"), "generator")])
def test_a_function_must_not_return_unfinished_work(make: Callable[[], object], kind: str) -> None:
    with pytest.raises(TypeError, match=f"the function returned a {kind}: it must do its work before it returns"):
        require_done(make())
    require_done(5)
    calls = Calls()
    with pytest.raises(TypeError, match=f"returned a {kind}"):
        calls.batch.once("table", make)
    assert calls.made == ["lease"]
