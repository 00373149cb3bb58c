"""What a member loads: Arrow where columns are asked for and not where messages are, and nothing to draw with."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import extent
from tests.support.installing import ROOT
from tests.support.members import daemon
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

RECORDS = 100
PROGRAM = """
import asyncio, json, sys, threading
import kzconsumer

HEAVY = ("pyarrow", "numpy", "rich", "structlog", "kzconsumer.records.columns")

class InTheEventLoop:
    seen = []

    def find_spec(self, name, path, target=None):
        if threading.current_thread() is threading.main_thread():
            self.seen.append(name)

async def main(connect, topic, form):
    settings = kzconsumer.Settings.from_dict(
        {"zookeeper": {"connect": connect}, "group": {"id": topic}, "offsets": {"reset": "smallest"}}
    )
    async with kzconsumer.connect(settings) as consumer:
        streams = await consumer.create_message_streams({topic: 1})
        stream, seen = streams[topic][0], 0
        async for taken in stream.batches() if form == "batches" else stream:
            seen += taken.num_rows if form == "batches" else len([taken.value])
            if seen == 100:
                break
    loaded = [name for name in HEAVY if name in sys.modules]
    print(json.dumps([seen, loaded, "pyarrow" in InTheEventLoop.seen]))

sys.meta_path.insert(0, InTheEventLoop())
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("codec", extent(["zstd"], ["none", "zstd"]))
async def test_a_member_that_iterates_messages_loads_nothing_heavy(cluster: Cluster, unique: str, codec: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    sent = [Sent(0, b"key", b"value %d" % n) for n in range(RECORDS)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent, codec)
    assert await asyncio.to_thread(member, cluster.connect, unique, "messages") == (RECORDS, [], False)


async def test_a_member_that_takes_batches_does(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    sent = [Sent(0, b"key", b"value %d" % n) for n in range(RECORDS)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    seen, loaded, in_the_event_loop = await asyncio.to_thread(member, cluster.connect, unique, "batches")
    assert seen == RECORDS
    assert not in_the_event_loop, "which would do nothing else for tenths of a second"
    assert {"pyarrow", "kzconsumer.records.columns"} <= set(loaded)


async def test_the_daemon_with_jsonlines_loads_no_arrow(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 1)
    sent = [Sent(0, b"key", b"value %d" % n) for n in range(RECORDS)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, imports=True) as running:
        await until(lambda: len(running.records()) == RECORDS, 30)
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0
    loaded = set(re.findall(r"^import time:.*\| +(\S+)$", running.err.read_text(), re.MULTILINE))
    assert {"kzconsumer.records.forms"} <= loaded
    assert not {"pyarrow", "numpy", "kzconsumer.records.columns"} & loaded


def member(*words: str) -> tuple[int, list[str], bool]:
    """Records, what was loaded, and whether that was Arrow, by the event loop."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    seen, loaded, in_the_event_loop = json.loads(done.stdout)
    return seen, loaded, in_the_event_loop
