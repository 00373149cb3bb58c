"""The functions of docs/spark-source.md that take each record once, without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.support.token_tables import COLUMNS, function, make_table


class Frame:
    """A batch of records of two partitions, as Arrow."""

    def __init__(self, *spans: Iterable[int]) -> None:
        self._rows = [
            {"topic": "t", "partition": number, "offset": offset, "value": str(offset)}
            for number, span in enumerate(spans)
            for offset in span
        ]

    def toArrow(self) -> pa.Table:
        return pa.Table.from_pylist(self._rows, COLUMNS)


def stored(into: str, path: Path) -> list[tuple[int, int]]:
    if into == "into_iceberg":
        catalog = load_catalog("default", type="sql", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
        table = catalog.load_table("lake.rows").scan().to_arrow()
    else:
        table = DeltaTable(path).to_pyarrow_table()
    return sorted((row["partition"], row["offset"]) for row in table.to_pylist())


@pytest.mark.parametrize(("into", "times"), [("into_delta", 1), ("into_iceberg", 1), ("appended", 2)])
def test_a_batch_that_comes_again_is_there_once(into: str, times: int, tmp_path: Path) -> None:
    """Also late, and cut at other offsets; the control appends."""
    make_table(into, tmp_path / "out")
    store: Any = function(into, str(tmp_path / "out"))
    for number, spans in enumerate([(range(10), range(3)), (range(10), range(6)), (range(10, 15), ()), (range(5),)]):
        store(Frame(*spans), number)
    found = stored(into, tmp_path / "out")
    once = [*((0, offset) for offset in range(15)), *((1, offset) for offset in range(6))]
    assert sorted(set(found)) == once
    assert (found == once) == (times == 1)
