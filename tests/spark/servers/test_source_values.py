"""Hostile records from a broker through the tasks of the Spark source: what comes out is what went in, or is named.

A task is a call of `fetched`. At night a query and a batch read of a Spark read the same (test_value_matrix.py).
"""

from __future__ import annotations

import asyncio

import anyio
import pyarrow as pa
import pytest

from kzconsumer.model import OffsetRange
from kzconsumer.settings.sections import RejectedSettings
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark.executors.fetching import NotStorableError, TaskPolicy, fetched, rejected_in
from tests.spark.servers.test_executor_errors import access
from tests.support.hostile_records import differences, records, refused, rows_of_table, sent
from tests.support.producing import produce

pytestmark = pytest.mark.timeout(120)
GOOD, BAD = records(), refused()
END = len(GOOD) + len(BAD)


async def test_each_record_is_the_same_or_named(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent([*GOOD, *BAD]))
    given = access(cluster, 30)
    skip = TaskPolicy(rejected=RejectedSettings(policy="skip"), group="g")

    def task(policy: TaskPolicy | None) -> pa.Table:
        return pa.Table.from_batches(list(fetched([OffsetRange(unique, 0, 0, END)], given, policy=policy)))

    found = await anyio.to_thread.run_sync(task, skip)
    assert differences(rows_of_table(found), GOOD) == []
    with pytest.raises(NotStorableError) as caught:
        await anyio.to_thread.run_sync(task, None)
    assert [each.offset for each in rejected_in(str(caught.value))] == list(range(len(GOOD), END))
