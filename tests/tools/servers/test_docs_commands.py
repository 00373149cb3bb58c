"""The commands in docs/offsets.md, groups.md and consume.md, run as printed, and their output.

In the order of their page; those about groups on a cluster of their own. What varies (times, ages) is compared by its
form.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from kzconsumer.cli.main import main
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.pages import form, printed
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

NEW_YEAR = 1_767_225_600_000
STORED = {"billing": {"orders": {0: b"4", 1: b"10", 2: b"7"}}, "audit": {"orders": {0: b"12"}, "gone": {0: b"3"}}}


@pytest.fixture(scope="module")
def billed(servers: Servers) -> Iterator[Cluster]:
    """The topic and the groups have the names that are printed."""
    cluster = servers.cluster("billed")
    anyio.run(create_topic, cluster.connect, "orders", 4)
    records = [Sent(p, None, b"x", timestamp=NEW_YEAR + (n - 5) * 1000) for p in range(4) for n in range(10)]
    produce(cluster.bootstrap, cluster.version, "orders", records)
    yield cluster
    cluster.kill()


@pytest.mark.parametrize("page", ["docs/offsets.md", "docs/groups.md"])
async def test_the_output_on_a_page_is_that_of_its_commands(
    billed: Cluster, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    async with session(billed.connect) as zookeeper:
        nodes = {f"{g}/offsets/{t}/{n}": d for g, ts in STORED.items() for t, ns in ts.items() for n, d in ns.items()}
        for path, data in {**nodes, "audit/owners/orders/2": b"audit_host-a-1795282558531-b173380f-0"}.items():
            await zookeeper.ensure(f"/consumers/{path}")
            await zookeeper.set(f"/consumers/{path}", data, -1)
    kzconsumer = CommandLine(capsys)
    assert printed(page)
    for command, answer in printed(page):
        done = await kzconsumer(*shlex.split(command.replace("zk1:2181", billed.connect)))
        out = done.out.replace(billed.connect, "zk1:2181")
        assert (done.err, form(out.splitlines())) == ("", form(answer)), f"{command}\n{done.out}"


def test_the_page_about_consuming_matches_a_shell(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """The commands run in this process, and what reads their output in a shell."""
    asyncio.run(create_topic(cluster.connect, "clicks", 2))
    records = [
        Sent(
            n % 2,
            (b"ann", b"bob")[n % 2],
            value,
            (("source", b"app" if value == b"buy" else b"web"),),
            NEW_YEAR + n * 1000,
        )
        for n, value in enumerate((b"view", b"view", b"buy", b"view", b"view", b"buy"))
    ]
    produce(cluster.bootstrap, cluster.version, "clicks", records)
    commands = printed("docs/consume.md")
    assert commands
    for command, answer in commands:
        words, _, reader = command.replace("zk1:2181", cluster.connect).partition(" | ")
        capfd.readouterr()
        assert main(shlex.split(words)) == 0
        out, err = capfd.readouterr()
        read = subprocess.run(
            ["bash", "-c", reader or "cat"],
            env=os.environ | {"LC_ALL": "C"},
            input=out,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )
        assert (err, read.stdout.splitlines()) == ("", answer), command
