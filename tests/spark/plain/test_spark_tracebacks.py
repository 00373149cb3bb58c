"""Which tracebacks of a failing batch are printed."""

from __future__ import annotations

import uuid

import pytest

from kzconsumer_spark.worker.tracebacks import Tracebacks


def failure(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_each_failure_of_a_batch_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    tracebacks = Tracebacks()

    def output(batch: int, error: BaseException) -> int:
        tracebacks.report(batch, error)
        return capsys.readouterr().err.count("Traceback (most recent call last)")

    assert output(7, failure(f"task 1 in stage 3, {uuid.uuid4()}, {uuid.uuid4().hex}")) == 1
    assert output(7, failure(f"task 0 in stage 14, {uuid.uuid4()}, {uuid.uuid4().hex}")) == 0
    assert output(7, failure("another one")) == 1
    assert output(7, failure("another one")) == 0
    assert output(8, failure("another one")) == 1
