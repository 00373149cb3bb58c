"""The exporter beside Kafka's own tool, and what it reports while a broker or ZooKeeper is away."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import only_nightly
from tests.support.members import reader, settings
from tests.support.original import console_consumer, offset_checker
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

PARTITIONS, EACH = 4, 10
INTERVAL = 0.5
Samples = dict[tuple[str, ...], float]


class Exported:
    """Requests to one exporter."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._http.get(path) as answer:
            return answer.status, json.loads(await answer.text())

    async def lag(self, group: str) -> Any:
        return (await self.get(f"/v3/kafka/test/consumer/{group}/lag"))[1].get("status")

    async def metrics(self, name: str, *labels: str) -> Samples:
        """The values of these labels -> the sample."""
        return {
            tuple(sample.labels[label] for label in labels): sample.value
            for sample in await self.samples()
            if sample.name == f"kzconsumer_{name}"
        }

    async def samples(self) -> list[Sample]:
        async with self._http.get("/metrics") as answer:
            text = await answer.text()
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@asynccontextmanager
async def exporter(connect: str, folder: Path, *more: str) -> AsyncIterator[Exported]:
    """The command itself, as a process."""
    address = f"127.0.0.1:{free_port()}"
    words = ["exporter", "--zookeeper", connect, "--listen", address, "--cluster", "test"]
    words += ["--interval", str(INTERVAL), "--stalled-after", "1", "--set", "zookeeper.session_timeout=4s", *more]
    with (folder / "exporter.log").open("wb") as log:
        process = await anyio.open_process([sys.executable, "-m", "kzconsumer", *words], stderr=log, stdout=log)
        try:
            async with aiohttp.ClientSession(f"http://{address}") as http:
                yield Exported(http)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(30):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def reached(condition: Callable[[], Any], limit: float = 60.0) -> None:
    with anyio.fail_after(limit):
        while True:
            try:
                if await condition():
                    return
            except aiohttp.ClientError:
                pass  # it does not listen yet
            await anyio.sleep(0.1)


@pytest.fixture
def server(servers: Servers, unique: str) -> ZooKeeperServer:
    """A ZooKeeper that the test may stop, like the broker."""
    return servers.own_zookeeper(f"zookeeper-{unique}")


@pytest.fixture
def cluster(servers: Servers, server: ZooKeeperServer, unique: str) -> Cluster:
    return servers.cluster(f"exporter-{unique}", "1.1.1", zookeeper=server)


@only_nightly  # figures: test_figures.py, test_offset_tools.py; outages: tests/tools/plain/test_exporter_outages.py
async def test_the_same_figures_as_kafkas_tool_and_nothing_invented_during_outages(
    servers: Servers, server: ZooKeeperServer, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """Groups with an original member, with one of ours, without members and behind, and with partitions unowned."""
    original, ours, stalled, unowned = (f"{unique}-{kind}" for kind in ("original", "ours", "stalled", "unowned"))
    await create_topic(cluster.connect, unique, PARTITIONS)

    async def send(each: int) -> None:
        records = [Sent(number, None, b"x") for number in range(PARTITIONS) for _ in range(each)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)

    await send(EACH)
    async with session(cluster.connect) as zookeeper:
        for group in (stalled, unowned):
            for number in range(PARTITIONS):
                path = f"/consumers/{group}/offsets/{unique}/{number}"
                await zookeeper.ensure(path)
                await zookeeper.set(path, b"%d" % (2 * number), -1)
        await zookeeper.ensure(f"/consumers/{unowned}/ids")
        registration = b'{"version":1,"subscription":{"%s":1},"pattern":"static"}' % unique.encode()
        await zookeeper.create(f"/consumers/{unowned}/ids/m", registration, ephemeral=True)
        with console_consumer(
            servers, cluster, original, unique, tmp_path / "original", from_beginning=True, auto_commit_interval_ms=300
        ) as member:
            async with (
                exporter(cluster.connect, tmp_path) as exported,
                reader(
                    settings(cluster.connect, ours, offsets={"reset": "smallest", "commit_interval": "1h"}), {unique: 2}
                ) as our_member,
            ):

                async def settled() -> bool:
                    known = [await exported.lag(group) for group in (original, stalled, unowned)]
                    return len(our_member.messages) == EACH * PARTITIONS and [
                        (each or {}).get("totallag") for each in known
                    ] == [0, 28, 28]

                await reached(settled)
                await our_member.consumer.commit()
                await send(1)

                async def same() -> bool:
                    return [(await exported.lag(group))["totallag"] for group in (original, ours)] == [0, 4]

                await reached(same)
                owner_of = await exported.metrics("group_partition_owner", "group", "partition", "owner")
                owners = {(group, int(number)): owner for group, number, owner in owner_of}
                for group in (original, ours, stalled):
                    status = await exported.lag(group)
                    printed = await offset_checker(servers, cluster, group, "--topic", unique)
                    rows = re.findall(
                        rf"^{group}\s+{unique}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\S+)", printed, re.MULTILINE
                    )
                    theirs = {int(n): (int(at), int(lag), owner) for n, at, _, lag, owner in rows}
                    found = {
                        each["partition"]: (each["end"]["offset"], each["current_lag"], each["owner"] or "none")
                        for each in status["partitions"]
                    }
                    assert found == theirs, printed
                    assert {n: owners.get((group, n), "none") for n in found} == {
                        n: o for n, (_, _, o) in theirs.items()
                    }
                assert {owners[original, n] for n in range(PARTITIONS)} == {member.thread()}
                unowned_now = await exported.metrics("group_unowned_partitions", "group")
                assert unowned_now == {(original,): 0, (ours,): 0, (stalled,): 0, (unowned,): PARTITIONS}

                async def judged_stopped() -> bool:
                    return [(await exported.lag(stalled))["status"]] == ["ERR"]

                await reached(judged_stopped)
                in_error = await exported.metrics("group_status", "group", "status")
                assert in_error[stalled, "ERR"] == in_error[original, "OK"] == 1
                standing = await exported.metrics("group_stalled_partitions", "group")
                assert (standing[(stalled,)], standing[(original,)]) == (PARTITIONS, 0)
                seconds = await exported.metrics("group_lag_seconds", "group")
                assert 0 < seconds[(stalled,)] < 600
                assert seconds[(original,)] == 0

                (broker,) = cluster.brokers.values()
                broker.send_signal(signal.SIGSTOP)

                async def unknown() -> bool:
                    up = await exported.metrics("exporter_up")
                    return (up, await exported.metrics("exporter_complete")) == ({(): 1}, {(): 0})

                await reached(unknown)
                assert await exported.metrics("group_lag_records", "group") == {}
                assert {each["current_lag"] for each in (await exported.lag(stalled))["partitions"]} == {None}
                assert (await exported.lag(original))["status"] == "UNKNOWN"
                assert await exported.metrics("group_partition_offset", "group"), "still known"
                broker.send_signal(signal.SIGCONT)

                async def known() -> bool:
                    return (stalled,) in await exported.metrics("group_lag_records", "group")

                await reached(known)

                server.send_signal(signal.SIGSTOP)

                async def lost() -> bool:
                    return await exported.metrics("exporter_up") == {(): 0}

                await reached(lost)
                assert await exported.metrics("group_members", "group") == {}
                code, answer = await exported.get(f"/v3/kafka/test/consumer/{stalled}/lag")
                assert (code, answer["error"]) == (503, True)
                server.send_signal(signal.SIGCONT)

                async def back() -> bool:
                    return ((await exported.lag(stalled)) or {}).get("totallag") == 32

                await reached(back)
                assert (await exported.get("/v3/kafka/other/consumer"))[0] == 404
                assert (await exported.get("/v3/kafka/test/consumer/none/status"))[0] == 404
