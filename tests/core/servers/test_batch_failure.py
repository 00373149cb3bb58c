"""A daemon whose sink cannot write one range of a batch: it quarantines that range, logs it, and continues."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet as pq

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import committed, daemon
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

RECORDS = 20


async def test_the_group_continues_without_the_quarantined_range(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, None, b"poison" if n == 7 else b"%d" % n) for n in range(2 * RECORDS)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    aside = tmp_path / "aside"
    sink = (
        f'[sink]\nplugin = "callable"\noptions = {{ function = "tests.support.sinks:print_wholesome" }}\n'
        f'on_batch_failure = "quarantine"\nquarantine = "{aside}"\n'
    )
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink) as member:
        kept = "range quarantined"
        await until(lambda: member.events(kept), 60)
        more = [Sent(1, None, b"good again")]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, more)
        await committed(cluster.connect, unique, unique, [RECORDS, RECORDS + 1], 60)
    (output,) = member.events(kept)
    assert (output["level"], output["topic"], output["partition"]) == ("error", unique, 1)
    assert "poison" in output["reason"]
    (file,) = aside.iterdir()
    assert str(file) == output["kept"]
    held = set(pq.read_table(file).column("offset").to_pylist())
    assert held == set(range(output["first"], output["until"]))
    printed = [(each["partition"], each["offset"]) for each in member.records()]
    assert sorted(printed) == sorted(
        (partition, offset)
        for partition, until_offset in ((0, RECORDS), (1, RECORDS + 1))
        for offset in range(until_offset)
        if partition == 0 or offset not in held
    )
