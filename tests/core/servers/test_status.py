"""The status of a daemon: real daemons, real servers, read over HTTP as by Prometheus and by people."""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.members import Daemon, daemon, reader, settings
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Asker:
    """Requests the status of one daemon."""

    def __init__(self, session: aiohttp.ClientSession, at: str) -> None:
        self.session = session
        self.at = at

    async def status(self, path: str, **headers: str) -> int:
        async with self.session.get(path, headers=headers) as answer:
            return answer.status

    async def json(self, path: str) -> Any:
        async with self.session.get(path) as answer:
            assert answer.content_type == "application/json"
            return await answer.json()

    async def metrics(self) -> Samples:
        """As a parser of OpenMetrics reads them, which checks them."""
        async with self.session.get("/metrics", headers=OPENMETRICS) as answer:
            assert answer.content_type == "application/openmetrics-text"
            text = await answer.text()
        return {
            (sample.name, frozenset((k, v) for k, v in sample.labels.items() if k != "group")): sample.value
            for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
            for sample in family.samples
        }


def printed() -> list[tuple[str, str]]:
    """The commands of docs/monitoring.md, and the answers printed there."""
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    blocks = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    blocks = [(command, answer) for command, answer in blocks if "--of" not in command]  # of a group from outside
    assert [command.split()[0] for command, _ in blocks] == ["kzconsumer", "curl"]
    return blocks


async def answered(command: str, kzconsumer: CommandLine) -> str:
    program, *words = shlex.split(command)
    if program == "curl":
        async with aiohttp.ClientSession() as session, session.get(words[-1]) as answer:
            return await answer.text()
    done = await kzconsumer(*words)
    assert done.status == 0, done.err
    return done.out


def form(text: str) -> list[str]:
    """Without what varies: widths that depend on names, and rates, which are unknown at first."""
    return [re.sub(r"(?<!\S)(-|\d+/s)(?!\S)", "RATE", " ".join(line.split())) for line in text.strip().splitlines()]


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"kzconsumer_{name}", frozenset(labels.items())))


@asynccontextmanager
async def asking(member: Daemon, connector: aiohttp.BaseConnector | None = None) -> AsyncIterator[Asker]:
    await until(lambda: member.events("status is served"), 30)
    (output,) = member.events("status is served")
    at = output["at"] if connector is None else "http://localhost"
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(at, connector=connector, timeout=timeout) as session:
        yield Asker(session, at)


async def reached(ask: Any, limit: float = 30.0) -> None:
    """Until the result of `ask` is true."""
    with anyio.fail_after(limit):
        while not await ask():
            await anyio.sleep(0.1)


async def send(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(n % 2, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def test_the_status_from_join_to_stop(
    cluster: Cluster, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offsets, lags, a pause, another member that takes a partition over, and no secrets."""
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 20)
    extra = '[status]\nlisten = "127.0.0.1:0"\nstalled_after = "1s"\n'
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, extra) as member:
        async with asking(member) as ask:

            async def lag(**labels: str) -> float | None:
                return value(await ask.metrics(), "partition_lag_records", topic=unique, **labels)

            async def all_stored() -> bool:
                return [await lag(partition=p, kind="committed") for p in "01"] == [0, 0]

            await reached(lambda: ask_ready(ask))
            await reached(all_stored)
            samples = await ask.metrics()
            assert value(samples, "records_total", topic=unique) == 20
            assert value(samples, "owned_partitions", topic=unique) == 2
            assert value(samples, "partition_offset", topic=unique, partition="1", kind="processed") == 10
            assert value(samples, "partition_lag_seconds", topic=unique, partition="1", kind="processed") == 0
            assert value(samples, "zookeeper_session", kzconsumer_zookeeper_session="held") == 1
            assert value(samples, "rebalances_total", reason="start", outcome="done") == 1
            assert value(samples, "rebalance_seconds_count") == sum(
                count for (name, _), count in samples.items() if name == "kzconsumer_rebalances_total"
            )
            assert (value(samples, "commits_total", storage="zookeeper", outcome="stored") or 0) >= 2
            assert value(samples, "sink_records_total") == 20
            assert (value(samples, "sink_seconds_count", stage="write") or 0) >= 1
            assert any(name == "kzconsumer_fetch_seconds_bucket" for name, _ in samples)
            assert any(name == "kzconsumer_decode_seconds_count" for name, _ in samples)
            assert value(samples, "queue_chunks", topic=unique, thread="0") == 0
            assert value(samples, "stalled_partitions") == 0

            status = await ask.json("/api/v1/status")
            assert (status["owned"], status["members"], status["lag"]) == (2, 1, 0)
            shown = (await ask.json("/api/v1/partitions"))["owned"]
            assert [each["offsets"] for each in shown] == [
                {"fetched": 10, "consumed": 10, "processed": 10, "committed": 10}
            ] * 2
            assert {each["leader"] for each in shown} == {1}
            assert [each["eta"] for each in shown if each["eta"]] == []
            (started,) = (await ask.json("/api/v1/rebalances"))["rebalances"]
            assert (started["reasons"][0], started["claimed"], started["outcome"]) == ("start", 2, "done")
            batches = await ask.json("/api/v1/batches")
            assert sum(each["records"] for each in batches["ended"]) == 20
            config = (await ask.json("/api/v1/config"))["config"]
            assert config["group.id"] == unique
            assert config["status.stalled_after"] == "1s"

            async def seen() -> bool:
                points = (await ask.json("/api/v1/history"))["points"]
                return bool(points) and (points[-1]["owned"], points[-1]["lag"], points[-1]["stalled"]) == (2, 0, 0)

            await reached(seen)
            for command, answer in printed():
                here = command.replace("http://127.0.0.1:9308", ask.at).replace("127.0.0.1:9308", ask.at[7:])
                out = await answered(here, CommandLine(capsys))
                out = out.replace(ask.at[7:], "127.0.0.1:9308").replace(unique, "orders")
                out = re.sub(r"\S+…\S+-(\d)", r"orders-\1", out)  # a long name is truncated
                assert form(out) == form(answer), command

            # A pause: there is a known reason for no progress, and its lag grows although it is not fetched.
            text = member.config.read_text()
            member.config.write_text(text.replace("[subscription]\n", f'[subscription]\npaused = ["{unique}:1"]\n'))
            member.signal(signal.SIGHUP)
            await until(lambda: member.events("configuration reloaded"), 20)
            await send(cluster, unique, 8)

            async def stands() -> bool:
                stalled = (await ask.json("/health/ready"))["stalled"]
                return [(each["partition"], each["reason"]) for each in stalled] == [(1, "paused")]

            await reached(stands)
            samples = await ask.metrics()
            assert value(samples, "partition_stalled", topic=unique, partition="1", reason="paused") == 1
            assert value(samples, "partition_paused", topic=unique, partition="1") == 1
            assert await lag(partition="1", kind="processed") == 4
            assert await lag(partition="0", kind="processed") == 0

            # Another member takes one of the two over: its series end.
            async with reader(settings(cluster.connect, unique), {unique: 1}) as other:
                await until(lambda: len(other.owned) == 1, 30)
                (gone,) = other.owned

                async def dropped() -> bool:
                    samples = await ask.metrics()
                    return not any(("partition", str(gone.partition)) in labels for _, labels in samples)

                await reached(dropped)
                samples = await ask.metrics()
                assert value(samples, "owned_partitions", topic=unique) == 1
                assert value(samples, "members") == 2
                members = (await ask.json("/api/v1/members"))["members"]
                assert [each["this"] for each in members].count(True) == 1
                rebalances = (await ask.json("/api/v1/rebalances"))["rebalances"]
                assert rebalances[-1]["released"] == 1
                assert "members" in rebalances[-1]["reasons"]

                # Of the whole group, by the nodes: also what this member does not own.
                async def shared() -> bool:
                    group = await ask.json("/api/v1/group")
                    owners = {each["owner"] for each in group["partitions"]}
                    return len(owners) == 2 and None not in owners

                await reached(shared)
                group = await ask.json("/api/v1/group")
                assert [(each["partition"], each["end"]) for each in group["partitions"]] == [(0, 14), (1, 14)]
                theirs = group["partitions"][gone.partition]
                assert theirs["owner"] == f"{other.consumer.consumer}-0"
                assert 10 <= theirs["committed"] <= 14
                assert theirs["lag"] == 14 - theirs["committed"]
                assert (group["reason"], group["left_out"]) == (None, 0)

            assert await ask.status("/health/live") == 200
            assert await ask.status("/health/ready", Host="evil.example") == 403
            assert await ask.status("/nothing") == 404
            async with ask.session.post("/api/v1/config", json={}) as refused:
                assert refused.status == 405
            member.signal(signal.SIGTERM)
            assert await member.ended() == 0
    assert "Traceback" not in member.err.read_text()


async def ask_ready(ask: Asker) -> bool:
    return await ask.status("/health/ready") == 200


async def test_a_token_and_a_socket(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """Without the token nothing is shown, a stale socket is replaced, and a hanging sink is named."""
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 10)
    path, secret = tmp_path / "s", tmp_path / "token"
    secret.write_text("do-not-tell-4711\n")
    extra = (
        f'[status]\nlisten = "unix:{path}"\nstalled_after = "1s"\ntoken_file = "{secret}"\n'
        '[service]\nstalled_after = "2s"\n[stop]\ndeadline = "1s"\n'
        '[sink]\nplugin = "callable"\noptions = { function = "tests.support.sinks:hang" }\n'
    )
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, extra) as killed:
        await until(lambda: killed.events("status is served"), 30)
        killed.signal(signal.SIGKILL)
        await killed.ended()
    killed.err.unlink()
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, extra) as member:
        async with asking(member, aiohttp.UnixConnector(str(path))) as ask:
            for wrong in ({}, {"Authorization": "Bearer do-not-tell"}, {"Authorization": "Basic do-not-tell-4711"}):
                for where in ("/metrics", "/health/live", "/health/ready", "/api/v1/config", "/nothing"):
                    assert await ask.status(where, **wrong) == 401, where
            ask.session.headers["Authorization"] = "Bearer do-not-tell-4711"

            async def dead() -> bool:
                return await ask.status("/health/live") == 503

            await reached(dead, 60)
            assert "nothing has been fetched or processed" in (await ask.json("/health/live"))["reason"]
            shown = (await ask.json("/api/v1/partitions"))["owned"]
            assert {(each["stalled"], each["hindrance"]) for each in shown} == {(True, "sink slow")}
            assert all(0 < each["lag_seconds"]["committed"] == each["progress"]["seconds"] for each in shown), (
                "though old"
            )
            for where in ("/metrics", "/api/v1/status", "/api/v1/config", "/api/v1/errors", "/api/v1/partitions"):
                async with ask.session.get(where) as answer:
                    assert "do-not-tell" not in await answer.text()
        member.signal(signal.SIGTERM)
        member.signal(signal.SIGTERM)
        await member.ended(40)
    assert not path.exists()
    assert "do-not-tell" not in member.err.read_text()
