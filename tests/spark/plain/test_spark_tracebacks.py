"""Which tracebacks of a failing batch are printed."""

from __future__ import annotations

import pytest

from kzconsumer_spark.worker.spark_errors import Tracebacks


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

    one, other = "0b4cbe1e-6d0f-4f0c-9d3c-5a9f2b1c7e88", "c7d1f2a4-91e3-4a6b-8f25-00e4d6b3a917"
    assert output(7, failure(f"task 1 in stage 3, {one}, {one.replace('-', '')}")) == 1
    assert output(7, failure(f"task 0 in stage 14, {other}, {other.replace('-', '')}")) == 0
    assert output(7, failure("another one")) == 1
    assert output(7, failure("another one")) == 0
    assert output(8, failure("another one")) == 1


def test_a_search_for_refused_records_prints_only_what_it_does_not_look_for(capsys: pytest.CaptureFixture[str]) -> None:
    tracebacks = Tracebacks()
    refused, other = failure("a value that cannot be cast"), failure("no space")
    vars(refused)["sqlstate"] = "22018"  # as psycopg's errors have it
    tracebacks.report(7, refused, is_trial=True)
    assert capsys.readouterr().err == ""
    for error, is_trial in ((refused, False), (other, True)):
        tracebacks.report(7, error, is_trial=is_trial)
        assert f"ValueError: {error}" in capsys.readouterr().err
