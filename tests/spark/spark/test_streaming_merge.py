"""The streaming query docs/examples/streaming_merge.py, run as it is, and again by a group that begins anew."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.documented import EACH, PARTITIONS, documented
from tests.support.extent import only_nightly
from tests.support.members import stored_offsets
from tests.support.servers import Servers

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "streaming_merge.py"
NEWEST = [(f"c{n}", (n + 1) * EACH - 1, EACH - 1, n, EACH - 1) for n in range(PARTITIONS)]
"""customer, id, cents, partition, offset"""


@only_nightly
@pytest.mark.timeout(400)
def test_the_latest_order_of_each_customer_is_in_the_table(servers: Servers, tmp_path: Path) -> None:
    cluster = documented(servers)
    text = EXAMPLE.read_text()
    for group in ("example-merge", "example-merge-again"):
        program = text.replace('"example-merge"', f'"{group}"').replace("lake/checkpoint", f"lake/checkpoint-{group}")
        (tmp_path / "program.py").write_text(program)
        environment = {
            **os.environ,
            "KZCONSUMER__ZOOKEEPER__CONNECT": cluster.connect,
            "PYSPARK_PYTHON": sys.executable,
        }
        with (tmp_path / "output").open("wb") as output:
            done = subprocess.run(
                [sys.executable, "program.py"], cwd=tmp_path, env=environment, stdout=output, stderr=output, check=False
            )
        assert done.returncode == 0, (tmp_path / "output").read_text()
        rows = DeltaTable(tmp_path / "lake" / "customers").to_pyarrow_table().to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == NEWEST
        assert asyncio.run(stored_offsets(cluster.connect, group, "orders", PARTITIONS)) == [EACH] * PARTITIONS
