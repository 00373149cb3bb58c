"""PySpark's own lines about failed statements, which have values of records."""

from __future__ import annotations

import logging
import sys

import pytest
from pyspark.errors.exceptions.base import PySparkException, QueryContext
from pyspark.logger import PySparkLogger

from kzconsumer_spark.worker.spark_session import silence_query_contexts

NAMES = {"SQL": "SQLQueryContextLogger", "DataFrame": "DataFrameQueryContextLogger"}


class Context:
    """Of an expression in a text of SQL or of a column, as an error of Java has one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def contextType(self) -> Context:
        return self

    def callSite(self) -> str:
        return "orders.py:7"

    def fragment(self) -> str:
        return "cast"


class CastError(PySparkException):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def getMessage(self) -> str:
        return "the value 'of a record' cannot be cast"

    def getCondition(self) -> str:
        return "CAST_INVALID_INPUT"

    def getQueryContext(self) -> list[QueryContext]:
        return [Context(self.kind)]  # type: ignore[list-item]


@pytest.mark.parametrize("kind", NAMES)
def test_a_value_that_cannot_be_cast_is_not_printed(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = PySparkLogger.getLogger(NAMES[kind])
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "handlers", [])
    logger.addHandler(logging.StreamHandler(sys.stderr))
    CastError(kind)._log_exception()
    assert "of a record" in capsys.readouterr().err, "PySpark prints it"
    silence_query_contexts()
    CastError(kind)._log_exception()
    assert capsys.readouterr().err == ""
