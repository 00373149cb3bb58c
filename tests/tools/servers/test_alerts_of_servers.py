"""Each alert rule of the exporter, and of members, with series recorded from real programs on real servers.

Time is stretched: promtool is told that a scrape each half second was one each 15 seconds, so five minutes of a rule
take ten seconds. What programs wait for by themselves is not stretched.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kzconsumer.registry.cluster import open_session
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.alerts import MISSING, Recording, firing
from tests.support.extent import only_nightly
from tests.support.members import Daemon, daemon
from tests.support.producing import Sent, produce
from tests.support.programs import PROMTOOL
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until
from tests.tools.original.test_exporter import Exported, exporter, reached
from tests.tools.servers.test_figures import BOTH, DONE, STATIC, State, delete_before, make

pytestmark = [pytest.mark.needs(PROMTOOL), pytest.mark.timeout(300)]

EVERY, SCRAPE = 0.5, 15

BEHIND = {"full/0": b"3", "full/1": b"10"}
STOPS: dict[str, tuple[State, set[str]]] = {
    "quiet": (State(DONE, {"m": STATIC}, BOTH), set()),
    "quiet, no members": (State(DONE), set()),
    "stalled": (State(BEHIND, {"m": STATIC}, BOTH), {"KzconsumerGroupPartitionStalled"}),
    "no members": (State(BEHIND), {"KzconsumerGroupWithoutMembers"}),
    "unowned": (State(DONE, {"m": STATIC}, {"full/0": b"m-0"}), {"KzconsumerGroupPartitionUnowned"}),
    "offsets lost": (State({"swept/0": b"2"}), {"KzconsumerGroupOffsetsLost"}),
    "no leader": (State({"leaderless/0": b"0", "full/0": b"10"}), {"KzconsumerGroupLagUnknown"}),
    "behind": (State({"old/0": b"3"}), {"KzconsumerGroupWithoutMembers", "KzconsumerGroupBehind"}),
    "of a deleted topic": (State({"gone/0": b"3", "full/0": b"10"}), set()),
}


async def recorded(scrape: Callable[[Recording], Awaitable[None]], seconds: float, recording: Recording) -> None:
    began = time.monotonic()
    for number in range(int(seconds / EVERY)):
        await scrape(recording)
        await anyio.sleep(max(0.0, began + (number + 1) * EVERY - time.monotonic()))


def of_exporter(exported: Exported) -> Callable[[Recording], Awaitable[None]]:
    async def scrape(recording: Recording) -> None:
        recording.add(await exported.samples(), "exporter:9309")

    return scrape


async def test_each_rule_of_the_exporter_fires_for_its_group_alone(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """Beside them a group that joins, and one whose owners change all the time."""
    names = {kind: f"{unique}-{kind}" for kind in ("full", "old", "swept", "gone", "leaderless", "empty")}
    hour = round(1000 * (time.time() - 3600))
    for kind in ("full", "old", "swept"):
        await create_topic(cluster.connect, names[kind], 2)
        records = [Sent(n % 2, None, b"x", timestamp=hour if kind == "old" else None) for n in range(20)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, names[kind], records)
    await asyncio.to_thread(delete_before, cluster.bootstrap, names["swept"], 10)
    groups = {kind: f"{unique}-{kind.replace(' ', '-').replace(',', '')}" for kind in STOPS}
    changing, joining, closed = (f"{unique}-{kind}" for kind in ("changing", "joining", "closed"))
    nobody = b'{"version":1,"partitions":{"0":[4711]}}'
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o600)
    digest = {"username": "other", "password_file": str(tmp_path / "password")}
    other = {"connect": cluster.connect, "digest": digest, "acl": "creator-only"}
    owner = Settings.from_dict({"zookeeper": other, "group": {"id": "unused"}})
    recording = Recording()
    async with session(cluster.connect) as zookeeper, open_session(owner.zookeeper) as of_another:
        await zookeeper.create(f"/brokers/topics/{names['leaderless']}", nobody)
        for kind, (state, _) in STOPS.items():
            await make(zookeeper, groups[kind], state, names)
        await of_another.ensure(f"/consumers/{closed}/ids")
        await make(zookeeper, changing, State(DONE, {"m": STATIC}, BOTH), names)
        async with exporter(cluster.connect, tmp_path, "--include", f"{unique}-.*") as exported:
            scrape = of_exporter(exported)
            await reached(lambda: up(exported))
            await recorded(scrape, 3, recording)
            await make(zookeeper, joining, State({}, {"m": STATIC}), names)
            await recorded(scrape, 3, recording)
            await make(zookeeper, joining, State(DONE, {}, BOTH), names)
            for _ in range(5):
                await owned(zookeeper, changing, names["full"], None)
                await recorded(scrape, 1.5, recording)
                await owned(zookeeper, changing, names["full"], b"m-0")
                await recorded(scrape, 3, recording)
        await zookeeper.delete(f"/brokers/topics/{names['leaderless']}", -1)
    found = firing("exporter-alerts.yml", recording.series, SCRAPE, tmp_path)
    expected = {(alert, groups[kind]) for kind, (_, alerts) in STOPS.items() for alert in alerts}
    expected |= {("KzconsumerGroupUnreadable", closed), ("KzconsumerExporterIncomplete", "")}
    assert found == expected


async def up(exported: Exported) -> bool:
    return await exported.metrics("exporter_up") == {(): 1.0}


async def owned(zookeeper: ZooKeeperSession, group: str, topic: str, thread: bytes | None) -> None:
    for number in range(2):
        path = f"/consumers/{group}/owners/{topic}/{number}"
        if thread is None:
            await zookeeper.delete(path, -1)
        else:
            await zookeeper.create(path, thread, ephemeral=True)


@only_nightly
async def test_an_exporter_without_brokers_without_zookeeper_and_without_a_scrape(
    servers: Servers, unique: str, tmp_path: Path
) -> None:
    """A group that was behind goes on being it, and one of which nothing is known is not fine."""
    server = servers.own_zookeeper(f"zookeeper-{unique}")
    cluster = servers.cluster(f"alerts-{unique}", "3.9.1", zookeeper=server)
    (broker,) = cluster.brokers.values()
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, None, b"x") for n in range(20)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    parts = []
    async with session(cluster.connect) as zookeeper:
        for group, state in (("behind", State(BEHIND)), ("done", State(DONE))):
            await make(zookeeper, group, state, {"full": unique, "empty": unique})
    async with exporter(cluster.connect, tmp_path) as exported:
        scrape = of_exporter(exported)
        await reached(lambda: up(exported))
        for process, seconds in ((None, 3.0), (broker, 40.0), (server, 40.0)):
            recording = Recording()
            if process is not None:
                process.send_signal(signal.SIGSTOP)
            await recorded(scrape, seconds, recording)
            parts.append(firing("exporter-alerts.yml", recording.series, SCRAPE, tmp_path))
        silent = {name: [*each, *[MISSING] * 40] for name, each in recording.series.items()}
        parts.append(firing("exporter-alerts.yml", silent, SCRAPE, tmp_path))
        for process in (server, broker):
            process.send_signal(signal.SIGCONT)
    unknown = {("KzconsumerGroupLagUnknown", group) for group in ("behind", "done")}
    assert parts[0] == set()
    assert parts[1] == {("KzconsumerGroupWithoutMembers", "behind"), ("KzconsumerExporterIncomplete", ""), *unknown}
    assert ("KzconsumerExporterDown", "") in parts[2]
    assert ("KzconsumerExporterNoData", "") in parts[3]


@asynccontextmanager
async def scraped(*members: Daemon) -> AsyncIterator[Callable[[Recording], Awaitable[None]]]:
    async with AsyncExitStack() as stack:
        clients = {}
        for member in members:
            await until(partial(member.events, "status is served"), 30)
            at = member.events("status is served")[0]["at"]
            clients[at] = await stack.enter_async_context(aiohttp.ClientSession(at))

        async def scrape(recording: Recording) -> None:
            found: list[Sample] = []
            for client in clients.values():
                async with client.get("/metrics") as answer:
                    text = await answer.text()
                found += [sample for family in text_string_to_metric_families(text) for sample in family.samples]
            recording.add(found, "members:9308")

        yield scrape


@only_nightly
async def test_each_rule_of_members_fires_for_its_group_alone(servers: Servers, unique: str, tmp_path: Path) -> None:
    """A sink that hangs; after that the broker is stopped. Until then a quiet group, which another member joins and
    leaves, raises none, from its start on."""
    cluster = servers.cluster(unique, "3.9.1")
    slow, quiet = f"{unique}-slow", f"{unique}-quiet"
    for topic in (slow, quiet):
        await create_topic(cluster.connect, topic, 2)
    extra = '[status]\nlisten = "127.0.0.1:0"\nstalled_after = "5s"\n[stop]\ndeadline = "1s"\n'
    hanging = f'{extra}[sink]\nplugin = "callable"\noptions = {{ function = "tests.support.sinks:hang_on_poison" }}\n'
    connect = cluster.connect
    async with AsyncExitStack() as stack:
        slow_one = stack.enter_context(daemon(tmp_path / "slow", connect, slow, {slow: 1}, hanging))
        quiet_one = stack.enter_context(daemon(tmp_path / "quiet", connect, quiet, {quiet: 1}, extra))
        scrape = await stack.enter_async_context(scraped(slow_one, quiet_one))
        before = Recording()
        await recorded(scrape, 5, before)
        records = [Sent(n % 2, None, b"poison") for n in range(10)]
        for topic in (slow, quiet):
            await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)
        with daemon(tmp_path / "other", connect, quiet, {quiet: 1}, ""):
            await recorded(scrape, 12, before)
        await recorded(scrape, 12, before)
        for broker in cluster.brokers.values():
            broker.kill()
        after = Recording()
        await recorded(scrape, 45, after)
    assert firing("alerts.yml", before.series, SCRAPE, tmp_path) == {("KzconsumerPartitionStalled", slow)}
    found = firing("alerts.yml", after.series, SCRAPE, tmp_path)
    stopped = {("KzconsumerPartitionStalled", group) for group in (slow, quiet)}
    assert found >= stopped | {("KzconsumerLagUnknown", quiet)}
    assert {alert for alert, _ in found - stopped} <= {"KzconsumerLagUnknown", "KzconsumerJudged", "KzconsumerErrors"}
