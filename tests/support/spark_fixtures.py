"""The Spark, and the Spark cluster, of tests that need none of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.extent import extent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark_cluster import SparkCluster


# Of queries of a few rows, compiling them is a fourth of the work: only at night they are, as a user's.
INTERPRETED = extent({"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}, {})


@pytest.fixture(scope="session")
def spark(quick_sparks: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """In this process, with the worker's settings and PostgreSQL's driver."""
    from tests.support.postgres import driver_jar
    from tests.support.spark_session import spark_session  # half a second that most tests do not need

    conf = {"spark.jars": str(driver_jar()), **INTERPRETED}
    with spark_session(tmp_path_factory.mktemp("spark"), conf) as running:
        yield running


@pytest.fixture(scope="session")
def standalone(quick_sparks: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and a worker on loopback; each application has executors of its own."""
    from tests.support.spark_cluster import spark_cluster

    with spark_cluster(tmp_path_factory.mktemp("standalone")) as running:
        yield running
