"""An application that forks: the child's end is not the end of the parent's session and connections."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import extent
from tests.support.producing import Sent, produce

PARENT = """
import os, signal, sys, time
import anyio
import kzconsumer

from tests.support.members import sessions_of

connect, topic, how, uvloop = sys.argv[1:]

async def main():
    settings = kzconsumer.Settings.from_dict(
        {"zookeeper": {"connect": connect, "session_timeout": "4s"}, "group": {"id": topic}}
    )
    async with kzconsumer.connect(settings) as consumer:
        streams = await consumer.create_message_streams({topic: 1})
        iterator = aiter(streams[topic][0])
        assert (await anext(iterator)).value == b"0"
        session = sessions_of(consumer).session
        began, links = session.id, []
        if (child := os.fork()) == 0:
            if how == "works":
                await anyio.sleep(2)  # what its loop reads and writes meanwhile is not the parent's
            sys.exit(0)
        time.sleep(0.3)
        await anyio.sleep(5)
        ended, _ = os.waitpid(child, os.WNOHANG)
        if not ended:  # from Python 3.14 on no task runs in a child of a fork, so its loop does not end either
            assert sys.version_info >= (3, 14), "the child is still running"
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for number in range(1, 10):
            assert (await anext(iterator)).value == b"%d" % number
        assert sessions_of(consumer).session.id == began, "another session"
        assert session.trusted()
        await consumer.commit()
        print("consumed in one session", flush=True)

anyio.run(main, backend_options={"use_uvloop": uvloop == "uvloop"})
"""


_EACH_ONCE = [("exits", "uvloop"), ("works", "asyncio")]


@pytest.mark.parametrize(("how", "loop"), extent(_EACH_ONCE, [*_EACH_ONCE, ("exits", "asyncio"), ("works", "uvloop")]))
async def test_a_child_that_ends_closes_nothing_of_its_parent(
    cluster: Cluster, unique: str, how: str, loop: str
) -> None:
    await create_topic(cluster.connect, unique, 1)
    produce(cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"%d" % n) for n in range(10)])
    command = [sys.executable, "-c", PARENT, cluster.connect, unique, how, loop]
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    ran = await asyncio.to_thread(run)
    assert ran.stdout.splitlines()[-1:] == ["consumed in one session"], ran.stderr
    assert ran.returncode == 0, ran.stderr
