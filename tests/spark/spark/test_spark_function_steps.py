"""What Spark's users do in foreachBatch works in a function of the sink, with the query's own frame and session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from kzconsumer.sinks.interface import Batch, RangeData
from tests.support.extent import only_nightly
from tests.support.range_data import range_data, record
from tests.support.served_sink import ServedSink
from tests.support.spark_functions import FUNCTION_DIRECTORY

pytestmark = pytest.mark.timeout(300)
LIMIT = 60.0


def orders(partition: int, first: int, *amounts: tuple[str, int]) -> RangeData:
    records = [
        record(first + n, key=customer.encode(), value=b"%d" % amount) for n, (customer, amount) in enumerate(amounts)
    ]
    return range_data("orders", partition, first, first + len(amounts), records)


def rows(path: Path, kind: str) -> list[dict[str, Any]]:
    found = ds.dataset(path, format=kind).to_table().to_pylist()  # type: ignore[call-overload]
    return sorted(found, key=str)


@only_nightly
async def test_cache_several_writes_joins_merge_and_python_on_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FUNCTION_DIRECTORY, str(tmp_path))
    (tmp_path / "names.csv").write_text("customer,name\na,Anna\nb,Ben\n")
    options = {"destination": "function", "function": "tests.support.spark_steps:steps", "attempts": 1}
    async with ServedSink(options, "shop") as sink:
        await sink.write(Batch((orders(0, 0, ("a", 3), ("b", 20)), orders(1, 7, ("a", 10)))))
        await sink.write(Batch((orders(0, 2, ("b", 5), ("c", 40)),)))
        with anyio.fail_after(LIMIT):
            while not (last := sink.status["last_progress"]) or last["batch_id"] != 2:  # type: ignore[index]
                await anyio.sleep(0.02)
    assert last["input_rows"] == 2, "read once, since the function caches"  # type: ignore[index]
    first, second = (json.loads(each.read_text()) for each in sorted(tmp_path.glob("seen-*")))
    assert first["query"]
    assert first["run"] == second["run"] == last["run"]  # type: ignore[index]
    assert first["description"].endswith(": orders-0[0..2), orders-1[7..8)")
    assert first["ranges"] == [[0, 0, 2], [1, 7, 8]]
    assert (first["doubled"], first["by_arrow"]) == ([6, 20, 40], 3)
    assert (second["doubled"], second["by_arrow"]) == ([10, 80], 2)
    assert len(rows(tmp_path / "orders", "parquet")) == 5
    assert [row["amount"] for row in rows(tmp_path / "large", "json")] == [10, 20, 40]
    assert rows(tmp_path / "named", "json") == [
        {"name": "Anna", "total": 13},
        {"name": "Ben", "total": 20},
        {"name": "Ben", "total": 5},
    ]
    totals = DeltaTable(tmp_path / "totals").to_pyarrow_table().to_pylist()
    assert {row["customer"]: row["total"] for row in totals} == {"a": 13, "b": 25, "c": 40}
