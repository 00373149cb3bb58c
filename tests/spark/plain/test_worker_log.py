"""What the worker process of the sink logs."""

from __future__ import annotations

import json
import logging
import warnings

import pytest

from kzconsumer.logs.logger import get_logger
from kzconsumer_spark.worker.worker_main import log_as_the_daemon


def test_lines_of_ours_and_warnings_have_the_form_of_the_daemons_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of PySpark about pandas 3. The tracebacks of a function are its own."""
    for name in ("kzconsumer", "py.warnings"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    monkeypatch.setattr(logging.root, "handlers", [])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)  # a test before may have left it on, for another `showwarning`
        log_as_the_daemon("info", "json")
        try:
            get_logger("kzconsumer.spark").warning("table locked by another writer", seconds=3)
            warnings.warn("PySpark does not yet fully support pandas >= 3.0.0", FutureWarning, stacklevel=1)
            logging.getLogger("pyspark").error("Traceback (most recent call last)")
        finally:
            logging.captureWarnings(False)
    ours, warning, *of_pyspark = capsys.readouterr().err.splitlines()
    assert json.loads(ours)["event"] == "table locked by another writer"
    found = json.loads(warning)
    assert (found["level"], "FutureWarning: PySpark does not" in found["event"]) == ("warning", True)
    assert of_pyspark == ["Traceback (most recent call last)"], "as Python prints an error if logging is not configured"
