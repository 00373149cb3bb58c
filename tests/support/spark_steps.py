"""A function for the Spark sink that does what applications do in foreachBatch: cache, several writes, joins, MERGE.

It runs in the sink's worker process. `FUNCTION_DIRECTORY` names the directory of its tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.support.spark_functions import FUNCTION_DIRECTORY


def steps(df: Any, batch_id: int, batch: Any) -> None:
    """Each `key` is a customer, each `value` an amount."""
    directory = Path(os.environ[FUNCTION_DIRECTORY])
    spark = df.sparkSession
    orders = df.selectExpr("cast(key AS string) AS customer", "cast(cast(value AS string) AS int) AS amount").cache()
    large = orders.where("amount >= 10")
    orders.write.mode("append").parquet(str(directory / "orders"))
    large.write.mode("append").json(str(directory / "large"))

    orders.createOrReplaceTempView("orders")
    spark.read.csv(str(directory / "names.csv"), header=True).createOrReplaceTempView("names")
    named = spark.sql("SELECT name, sum(amount) AS total FROM orders JOIN names USING (customer) GROUP BY name")
    named.write.mode("append").json(str(directory / "named"))

    totals = orders.groupBy("customer").sum("amount").toDF("customer", "total").toArrow()
    _merge(directory / "totals", totals)

    doubled = orders.mapInPandas(_doubled, "customer string, amount int")
    context = spark.sparkContext
    seen = {
        "query": context.getLocalProperty("sql.streaming.queryId"),
        "run": context.getLocalProperty("spark.jobGroup.id"),
        "description": context.getLocalProperty("spark.job.description"),
        "doubled": sorted(row.amount for row in doubled.collect()),
        "by_arrow": orders.mapInArrow(_counted, "records long").agg({"records": "sum"}).first()[0],
        "ranges": [[part.partition, part.first, part.until] for part in batch.ranges],
    }
    (directory / f"seen-{batch_id}").write_text(json.dumps(seen))
    orders.unpersist()


def _merge(path: Path, totals: pa.Table) -> None:
    """Delta's MERGE, by its Python package that needs no jar."""
    if not DeltaTable.is_deltatable(str(path)):
        write_deltalake(path, totals)
        return
    merge = DeltaTable(path).merge(
        totals, predicate="old.customer = new.customer", source_alias="new", target_alias="old"
    )
    merge = merge.when_matched_update({"total": "old.total + new.total"})
    merge.when_not_matched_insert_all().execute()


def _doubled(frames: Iterator[Any]) -> Iterator[Any]:
    for frame in frames:
        yield frame.assign(amount=frame["amount"] * 2)


def _counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for each in batches:
        yield pa.RecordBatch.from_pydict({"records": [each.num_rows]})
