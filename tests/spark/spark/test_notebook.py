"""The notebook of the documentation, cell after cell. As in Jupyter, an event loop runs in the thread."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import stored_offsets
from tests.support.processes import wait_until
from tests.support.producing import Sent, produce
from tests.support.source_query import LIMIT, reader_processes, starved

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
                text = text.replace('"orders"', f'"{unique}"').replace('"notebook"', f'"{unique}"')
                with contextlib.redirect_stdout(printed):
                    exec(text.replace("notebook/", f"{tmp_path}/"), variables)

    while True:
        try:
            run()
            break
        except StreamingQueryException as error:
            if not starved(error):
                raise
            await asyncio.to_thread(wait_until, lambda: not reader_processes(spark), LIMIT)
    shown = printed.getvalue().replace(" ", "")
    assert "|0|500|0|499|" in shown, "what is left"
    assert "|0|500|500|" in shown, "what is written"
    assert variables["remaining"] == 0
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [500, 500]
