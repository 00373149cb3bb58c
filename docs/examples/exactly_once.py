"""A function that writes to PostgreSQL, each record once.

Shows: the sink "callable", and progress that is stored in the transaction of the rows. So a redelivered range adds
nothing, nor does a former owner of the partition that is still writing.

    pip install 'psycopg[binary]'
    export PGHOST=db1 PGDATABASE=shop PGUSER=orders PGPASSWORD=...
    eval "$(kzconsumer sandbox env)"      # or: export KZCONSUMER__ZOOKEEPER__CONNECT=zk1:2181/kafka
    python exactly_once.py                # once: makes the tables
    kzconsumer run exactly_once.toml
"""

from __future__ import annotations

import json

import psycopg

from kzconsumer.sinks import Batch, RangeData

TABLES = """
create table if not exists orders (id bigint, cents bigint);
create table if not exists progress (
    topic text, partition int, incarnation bigint, epoch bigint, until bigint not null,
    primary key (topic, partition, incarnation, epoch));
"""
# A recreated topic has another incarnation, and a reset of the offsets begins another epoch: both are to be written.
BEGIN = "insert into progress values (%s, %s, %s, %s, %s) on conflict do nothing"
LOCK = """select until from progress
    where (topic, partition, incarnation, epoch) = (%s, %s, %s, %s) for update"""
# Rows of a later epoch are of after a reset that this member does not know: ZooKeeper is a copy of before it.
LATER = "select max(epoch) from progress where (topic, partition, incarnation) = (%s, %s, %s) and epoch > %s"
ADVANCE = "update progress set until = %s where (topic, partition, incarnation, epoch) = (%s, %s, %s, %s)"


async def store(batch: Batch) -> None:
    """Offsets are committed in ZooKeeper once this has returned. If it raises, the member stops."""
    async with await psycopg.AsyncConnection.connect() as transaction:  # committed at the end of the block
        # Always in the same order: two members that write the same partitions wait for each other's locks.
        for part in sorted(batch.ranges, key=lambda each: each.topic_partition):
            await write(transaction, part)


async def write(transaction: psycopg.AsyncConnection, part: RangeData) -> None:
    name = (part.topic, part.partition, part.incarnation, part.epoch)
    await transaction.execute(BEGIN, (*name, part.first))
    (until,) = await (await transaction.execute(LOCK, name)).fetchone() or (part.first,)
    if until < part.first:
        raise RuntimeError(f"{part.topic} {part.partition}: rows up to {until}, expected {part.first}: went back?")
    (later,) = await (await transaction.execute(LATER, name)).fetchone() or (None,)
    if later is not None:
        raise RuntimeError(f"{part.topic} {part.partition}: rows of epoch {later}, this is {part.epoch}: went back?")
    orders = [json.loads(message.value or b"") for message in part.messages() if message.offset >= until]
    async with transaction.cursor() as cursor:
        await cursor.executemany("insert into orders values (%s, %s)", [(each["id"], each["cents"]) for each in orders])
    await transaction.execute(ADVANCE, (max(until, part.until), *name))


if __name__ == "__main__":
    with psycopg.connect() as connection:
        connection.execute(TABLES)
