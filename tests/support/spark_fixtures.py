"""The Spark shared by tests that need none of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.postgres import driver_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(quick_sparks: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """In this process, with the worker's settings and PostgreSQL's driver."""
    from tests.support.spark_session import spark_session  # half a second that most tests do not need

    with spark_session(tmp_path_factory.mktemp("spark"), {"spark.jars": str(driver_jar())}) as running:
        yield running
