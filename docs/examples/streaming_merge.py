"""A streaming query that keeps the latest order of each customer in a Delta table.

Shows: the source for your own Spark, and a MERGE that has the same result if a batch is delivered again, be it by Spark
or by another query of the group.

    pip install ./plugins/files './plugins/spark[delta]'      # in a clone; needs Java 17
    eval "$(kzconsumer sandbox env)"      # or: export KZCONSUMER__ZOOKEEPER__CONNECT=zk1:2181/kafka
    python streaming_merge.py
"""

from __future__ import annotations

import os

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import kzconsumer_spark

TABLE, CHECKPOINT = "lake/customers", "lake/checkpoint"
COLUMNS = pa.schema(
    {"customer": pa.string(), "id": pa.int64(), "cents": pa.int64(), "partition": pa.int32(), "offset": pa.int64()}
)


def merge(frame: DataFrame, batch_id: int) -> None:
    """One row for each customer. Orders of a customer have its name as key, so they are in one partition, in order."""
    order = sql.from_json(sql.col("value").cast("string"), "customer STRING, id BIGINT, cents BIGINT")
    rows = frame.select(order.alias("order"), "partition", "offset").select("order.*", "partition", "offset")
    newest = rows.groupBy("customer").agg(
        sql.max_by(sql.struct("id", "cents", "partition", "offset"), "offset").alias("row")
    )
    merged = DeltaTable(TABLE).merge(
        newest.select("customer", "row.*").toArrow(),
        "stored.customer = new.customer",
        source_alias="new",
        target_alias="stored",
    )
    # An older order than the stored one is of a batch that is delivered again.
    merged.when_matched_update_all("new.offset > stored.offset").when_not_matched_insert_all().execute()


def main() -> None:
    DeltaTable.create(TABLE, Schema.from_arrow(COLUMNS), mode="ignore")
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.dataSource.register(kzconsumer_spark.GroupSource)
    orders = (
        spark.readStream.format("kzconsumer")
        .option("zookeeper.connect", os.environ["KZCONSUMER__ZOOKEEPER__CONNECT"])
        .option("group.id", "example-merge")
        .option("topics", "orders")
        .load()
    )
    query = (
        orders.writeStream.foreachBatch(merge)
        .option("checkpointLocation", CHECKPOINT)
        .trigger(availableNow=True)  # without this line the query continues
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
