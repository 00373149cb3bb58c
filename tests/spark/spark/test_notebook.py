"""The notebook of the documentation, its cells run one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.topics import create_topic
from tests.support.members import stored_offsets
from tests.support.producing import Sent, produce

NOTEBOOK = Path(__file__).parents[3] / "docs" / "spark-source.ipynb"

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


async def test_the_notebook(spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, None, b"%d" % n) for n in range(1000)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    printed = io.StringIO()
    variables: dict[str, object] = {}

    def run() -> None:
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] == "code":
                text = "".join(cell["source"]).replace("zk1:2181/kafka", cluster.connect)
                text = text.replace('"orders"', f'"{unique}"').replace('"lake"', f'"{unique}"')
                with contextlib.redirect_stdout(printed):
                    exec(text.replace("lake/", f"{tmp_path}/"), variables)

    await asyncio.to_thread(run)
    assert printed.getvalue().count("|        0|") == 1
    assert f"|{unique}|        0|     500|" in "".join(printed.getvalue().split("count(1)")[1:])
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [500, 500]
    assert await asyncio.to_thread(lambda: spark.read.format("kzconsumer").options(**options_of(variables)).load().count()) == 0


def options_of(variables: dict[str, object]) -> dict[str, str]:
    found = variables["source"]
    assert isinstance(found, dict)
    return found
