"""A task of the source makes dead letters of records that Spark cannot hold. A task is a call of `fetched`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from kzconsumer.errors import DeadLetterError
from kzconsumer.model import OffsetRange
from kzconsumer.settings.sections import RejectedSettings
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark.executors.broker_access import BrokerAccess
from kzconsumer_spark.executors.fetching import TaskPolicy, fetched
from tests.spark.servers.test_executor_errors import access
from tests.support.dead_letters import read_letters
from tests.support.extent import only_nightly
from tests.support.producing import Sent, produce
from tests.support.secured import SCRAM_PASSWORD, Secured

pytestmark = pytest.mark.timeout(120)
NANOSECONDS = 1_700_000_000_000_000_000
RECORDS, BAD = 1000, {613, 614, 999}
LEFT = [n for n in range(RECORDS) if n not in BAD]


async def poisoned(cluster: Cluster, topic: str) -> None:
    await create_topic(cluster.connect, topic, 1)
    sent = [Sent(0, b"k", b"%d" % n, timestamp=NANOSECONDS if n in BAD else None) for n in range(RECORDS)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, sent)


async def read(of: str, given: BrokerAccess, **rejected: object) -> list[int]:
    policy = TaskPolicy(rejected=RejectedSettings(**rejected), group="readers")  # type: ignore[arg-type]

    def task() -> list[int]:
        batches = fetched([OffsetRange(of, 0, 0, RECORDS)], given, policy=policy)
        return [int(offset.as_py()) for batch in batches for offset in batch["offset"]]

    return await anyio.to_thread.run_sync(task)


async def test_dead_letters_are_in_the_topic(cluster: Cluster, unique: str) -> None:
    """`plain/test_task_policies.py` has the other policies."""
    await poisoned(cluster, unique)
    given, aside = access(cluster, 30), f"{unique}-letters"
    with pytest.raises(DeadLetterError, match=f"topic {aside}: "):
        await read(unique, access(cluster, 1), policy="dead-letter", topic=aside)
    await create_topic(cluster.connect, aside, 1)
    assert await read(unique, given, policy="dead-letter", topic=aside) == LEFT
    letters = read_letters(cluster.bootstrap, aside, len(BAD))
    assert sorted((each.original_offset, each.key, each.value) for each in letters) == [
        (n, b"k", b"%d" % n) for n in sorted(BAD)
    ]
    of_the_first = dict(letters[0].headers)
    assert of_the_first["kafka_dlt-original-consumer-group"] == b"readers"
    assert of_the_first["kafka_dlt-exception-fqcn"] == b"unstorable"


@only_nightly  # test_executor_access has the settings that a producer gets
async def test_dead_letters_are_written_with_the_password_of_the_member(secured: Secured, unique: str) -> None:
    """Its file is gone by then, as on an executor."""
    cluster, aside = secured.cluster_of("3.9.1"), f"{unique}-letters"
    await poisoned(cluster, unique)
    await create_topic(cluster.connect, aside, 1)
    password = secured.file(f"{unique}-password", SCRAM_PASSWORD + "\n")
    table = secured.table(cluster, "SASL_SSL", "SCRAM-SHA-512", sasl={"password_file": password})
    given = access(cluster, 30, table)
    Path(password).unlink()
    assert await read(unique, given, policy="dead-letter", topic=aside) == LEFT
    letters = await asyncio.to_thread(read_letters, cluster.bootstrap, aside, len(BAD))
    assert {each.original_offset for each in letters} == BAD
