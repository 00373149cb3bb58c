"""The function of docs/spark-functions.md that writes into a database, held to the contract by the test printed there.

Run as printed, except for the address of the database, by a Spark that runs tasks again, and without kills, which are
in tests/spark/spark/test_spark_contract.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from kzconsumer_sandbox.servers.configuration import HOST
from tests.support.extent import only_nightly
from tests.support.postgres import JDBC_COMMIT, Postgres, driver_jar
from tests.support.proxy import FaultProxy

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "spark-functions.md"
ALL_BODIES = """

def all_bodies():
    with psycopg.connect({address!r}) as connection:
        return [body for (body,) in connection.execute("select body from orders")]
"""


def printed(says: str) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = (each for each in blocks if says in each)
    return str(block)


def put(text: str, *changes: tuple[str, str]) -> str:
    for printed_text, ours in changes:
        assert text.count(printed_text) == 1, printed_text
        text = text.replace(printed_text, ours)
    return text


@only_nightly
@pytest.mark.timeout(900)
def test_the_printed_function_keeps_the_contract(database: Postgres, tmp_path: Path) -> None:
    with start_blocking_portal() as portal:
        proxied = portal.wrap_async_context_manager(FaultProxy(HOST, database.port))
        with proxied as proxy:
            proxy.lose_answer_to = JDBC_COMMIT  # the task runs again after its commit
            _test_what_is_printed(database, proxy.port, tmp_path)
            assert proxy.lose_answer_to is None


def _test_what_is_printed(database: Postgres, port: int, tmp_path: Path) -> None:
    database.query("create schema shop")
    database.query("create table shop.ranges (token text primary key)")
    database.query("create table shop.orders (body text)")
    user = f"user={database.user}&password={database.password}"
    url = f"jdbc:postgresql://{HOST}:{port}/postgres?currentSchema=shop&{user}"
    address = (
        f"host=127.0.0.1 port={database.port} dbname=postgres user={database.user} password={database.password}"
        " options='-c search_path=shop'"
    )
    function = put(printed("psycopg"), ("jdbc:postgresql://db/shop", url), ("host=db dbname=shop", address))
    (tmp_path / "orders.py").write_text(function)
    test = put(
        printed("SinkContract"),
        ("kills, zombies, races = 2, 1, 2", "kills, zombies, races = 0, 1, 1"),
        (
            '"start_timeout": "300s"',
            f'"start_timeout": "300s", "master": "local[2,4]", "conf": {{"spark.jars": "{driver_jar()}"}}',
        ),
    )
    (tmp_path / "test_store.py").write_text(f"import psycopg\n\n{test}{ALL_BODIES.format(address=address)}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "test_store.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
