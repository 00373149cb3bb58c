"""Batches into DuckDB, and from there into pandas.

Shows: Arrow batches, a run to the end of the log, inserts that may be repeated.

pip install duckdb pandas
eval "$(kzconsumer sandbox env)"      # or: export KZCONSUMER__ZOOKEEPER__CONNECT=zk1:2181/kafka
python duckdb_batches.py              # again: it adds what is new
"""

from __future__ import annotations

import asyncio
import os

import duckdb
import pyarrow as pa

import kzconsumer

SETTINGS = {
    "zookeeper": {"connect": os.environ["KZCONSUMER__ZOOKEEPER__CONNECT"]},
    "group": {"id": "example-duckdb"},
    "subscription": {"stop_at": "end"},
}
TABLE = """create table if not exists orders
    ("partition" integer, "offset" bigint, id bigint, cents bigint, primary key ("partition", "offset"))"""
# A batch that was not committed is redelivered: its rows are there already.
INSERT = """insert or ignore into orders
    select "partition", "offset", (value ->> 'id')::bigint, (value ->> 'cents')::bigint
    from (select "partition", "offset", decode(value)::json as value from batch)"""
REPORT = 'select "partition", count(*) as orders, sum(cents) / 100 as euros from orders group by all order by all'


def insert(database: duckdb.DuckDBPyConnection, batch: pa.RecordBatch) -> None:
    database.register("batch", pa.Table.from_batches([batch]))
    database.execute(INSERT)


async def main() -> None:
    with duckdb.connect("orders.duckdb") as database:
        database.execute(TABLE)
        async with kzconsumer.connect(kzconsumer.Settings.from_dict(SETTINGS)) as consumer:
            (stream,) = (await consumer.create_message_streams({"orders": 1}))["orders"]
            async for batch in stream.batches():
                await asyncio.to_thread(insert, database, batch)
                stream.ack()  # from now on it may be committed
        print(database.sql(REPORT).df().to_string(index=False))  # a pandas.DataFrame


asyncio.run(main())
