"""The daemon under a service manager: a real daemon, real servers, and the test as the manager."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import anyio

import kzconsumer
from kzconsumer.clock import now
from kzconsumer.consumer import ConsumerConnector
from kzconsumer.service.systemd import Manager, ServiceReport
from kzconsumer.sessions import Sessions
from kzconsumer.status.health import Health
from kzconsumer.zookeeper.session import Lease
from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import Daemon, committed, owners, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.proxy import FaultProxy
from tests.support.servers import Servers
from tests.support.service_manager import ServiceManager, service_manager
from tests.support.zookeeper_sessions import session, until

WATCHDOG = 4.0
"""A beat is a quarter of it: so much later a busy machine may be."""
HANGING = '[sink]\nplugin = "callable"\noptions = { function = "tests.support.sinks:%s" }\n'


@contextmanager
def served(
    folder: Path, connect: str, group: str, topics: dict[str, int], extra: str = ""
) -> Iterator[tuple[Daemon, ServiceManager]]:
    """A daemon with a watchdog; killed at the end if it is still running."""
    with service_manager(f"@{folder}") as manager:
        member = Daemon(folder, connect, group, topics, extra, "smallest")
        member.environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))}
        member.start()
        assert member.process is not None
        try:
            yield member, manager
        finally:
            if member.process.poll() is None:
                member.process.kill()
                member.process.wait()
        assert {each.pid for each in manager.messages} == {member.process.pid}


async def send(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(n % 2, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


def longest_gap(manager: ServiceManager, since: float, until: float) -> float:
    """Between keep-alive messages, in seconds."""
    times = [since, *(at for at in manager.times("WATCHDOG") if since <= at <= until), until]
    return max(after - before for before, after in pairwise(times))


async def test_from_start_to_stop(servers: Servers, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """ZooKeeper starts late and is away for a while, the configuration is changed twice, and the stop is orderly."""
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 10)
    proxy = FaultProxy(servers.zookeeper.host, servers.zookeeper.port, listen=free_port())
    connect = f"{proxy.connect}/{cluster.connect.partition('/')[2]}"
    with served(tmp_path, connect, unique, {unique: 1}) as (member, manager):
        # Nothing is ready while there is no ZooKeeper; more time is requested instead.
        await until(lambda: len(manager.values("EXTEND_TIMEOUT_USEC")) >= 2, 30)
        assert manager.status == "waiting for ZooKeeper and a broker"
        assert manager.values("READY") == []
        async with proxy, session(cluster.connect) as zookeeper:
            await until(lambda: manager.values("READY"), 30)
            owned = await owners(zookeeper, unique, unique, 2)
            assert len(owned) == 2, "READY is sent after the first rebalance"
            assert "consuming 2 partitions" in manager.first("READY").fields["STATUS"]
            await until(lambda: len(member.records()) == 10, 30)
            await until(lambda: manager.status == "consuming 2 partitions, 0 records behind")

            await committed(cluster.connect, unique, unique, [5, 5], 20)

            # An unavailable ZooKeeper is not a reason for a restart.
            await proxy.refuse()
            away = time.monotonic()
            await until(lambda: manager.status == "waiting for ZooKeeper or a broker", 20)
            beats = len(manager.times("WATCHDOG"))
            await until(lambda: len(manager.times("WATCHDOG")) >= beats + 2)
            assert longest_gap(manager, away, time.monotonic()) < WATCHDOG
            await proxy.listen()
            await until(lambda: manager.status.startswith("consuming 2"), 30)

            # What can change without a rebalance changes; the rest is reported, in the log and in the status.
            text = member.config.read_text()
            before = time.monotonic_ns() // 1000
            member.config.write_text(
                text.replace('progress_interval = "200ms"', 'progress_interval = "1h"').replace("100ms", "1h")
                + "[fetch]\nmax_bytes = 5000\nrate_limit = 1000000\n"
            )
            member.signal(signal.SIGHUP)
            await until(lambda: len(manager.values("READY")) == 2, 20)
            (reloading,) = (each for each in manager.messages if "RELOADING" in each.fields)
            assert before <= int(reloading.fields["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
            (output,) = member.events("configuration reloaded")
            assert sorted(output["applied"]) == ["batch.max_time", "fetch.rate_limit", "log.progress_interval"]
            (rest,) = member.events("changes need a restart")
            assert rest["keys"] == ["fetch.max_bytes"]
            assert manager.status.endswith("restart needed for fetch.max_bytes")
            counted = len(member.events("progress"))
            await send(cluster, unique, 4)
            await anyio.sleep(1.0)
            assert len(member.records()) == 10, "a batch takes its time now"
            assert 0 < counted <= len(member.events("progress")) <= counted + 1

            # A file with a fault changes nothing, and the fault is reported with its line.
            member.config.write_text(text + "[batch]\n")
            member.signal(signal.SIGHUP)
            await until(lambda: len(manager.values("READY")) == 3, 20)
            (refused,) = member.events("configuration refused")
            assert refused["faults"][0].startswith(f"{member.config}:")
            assert "is not TOML: " in refused["faults"][0]
            member.config.write_text(text.replace('level = "debug"', 'level = "loud"'))
            member.signal(signal.SIGHUP)
            await until(lambda: len(manager.values("READY")) == 4, 20)
            assert "configuration refused: " in manager.status
            assert '[log] level: "loud" is not one of' in manager.status
            assert len(member.records()) == 10
            member.config.write_text(text)
            member.signal(signal.SIGHUP)
            await until(lambda: len(member.records()) == 14, 20)
            await until(lambda: manager.status == "consuming 2 partitions, 0 records behind")

            # A pause begins with one reload and ends with another.
            member.config.write_text(text.replace("[subscription]\n", f'[subscription]\npaused = ["{unique}:1"]\n'))
            member.signal(signal.SIGHUP)
            await until(lambda: manager.status == "consuming 2 partitions, 0 records behind, 1 paused", 20)
            await send(cluster, unique, 4)
            await until(lambda: len(member.records()) == 16, 20)
            await until(lambda: manager.status == "consuming 2 partitions, 0 records behind, 1 paused", 20)
            assert [record["partition"] for record in member.records()[14:]] == [0, 0]
            member.config.write_text(text)
            member.signal(signal.SIGHUP)
            await until(lambda: len(member.records()) == 18, 20)
            assert await owners(zookeeper, unique, unique, 2) == owned, "none of all this was a rebalance"

            member.signal(signal.SIGTERM)
            assert await member.ended() == 0
    assert longest_gap(manager, manager.first("READY").at, manager.first("STOPPING").at) < WATCHDOG
    stopping = manager.first("STOPPING").fields
    assert stopping["STATUS"].startswith("stopping")
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 30 * 1e6, "the deadline of the stop, and more"
    assert manager.status == "stopped"
    assert sum(offset or 0 for offset in await stored_offsets(cluster.connect, unique, unique, 2)) == 18
    assert "Traceback" not in member.err.read_text()


async def test_other_topics_are_a_rebalance_of_the_same_process(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    first, second = f"{unique}-1", f"{unique}-2"
    for topic in (first, second):
        await create_topic(cluster.connect, topic, 2)
        await send(cluster, topic, 10)
    with served(tmp_path, cluster.connect, unique, {first: 1}) as (member, manager):
        async with session(cluster.connect) as zookeeper:
            await until(lambda: len(member.records()) == 10, 30)
            text = member.config.read_text()
            member.config.write_text(text.replace(f'"{first}" = 1', f'"{second}" = 1'))
            member.signal(signal.SIGHUP)
            await until(lambda: len(manager.values("READY")) == 2, 30)
            assert [len(await owners(zookeeper, unique, topic, 2)) for topic in (first, second)] == [0, 2]
            await until(lambda: len(member.records()) == 20, 30)
            assert [record["topic"] for record in member.records()] == [first] * 10 + [second] * 10
            assert await stored_offsets(cluster.connect, unique, first, 2) == [5, 5], "it left in order"
            (output,) = member.events("configuration reloaded")
            assert output["applied"] == ["subscription.topics"]
            assert manager.values("STOPPING") == []
            member.signal(signal.SIGTERM)
            assert await member.ended() == 0
    assert await stored_offsets(cluster.connect, unique, second, 2) == [5, 5]


async def test_a_member_without_partitions_is_ready_too(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    with served(tmp_path, cluster.connect, unique, {f"{unique}-to-come": 1}) as (member, manager):
        await until(lambda: manager.values("READY"), 30)
        assert manager.first("READY").fields["STATUS"] == "in the group, no partitions"
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0


async def test_a_stalled_daemon_sends_no_keep_alive(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """A sink that never returns while there is more to write, and one that blocks the event loop itself."""
    stalled = '[service]\nstalled_after = "1s"\n'
    with ExitStack() as running:
        daemons = {}
        for how in ("hang", "block"):
            await create_topic(cluster.connect, f"{unique}-{how}", 2)
            group = f"{unique}-{how}"
            start = served(tmp_path / how, cluster.connect, group, {group: 1}, HANGING % how + stalled)
            daemons[how] = running.enter_context(start)
        for _, manager in daemons.values():
            await until(lambda: manager.values("READY"), 30)  # noqa: B023
            ready = time.monotonic()
            # For longer than `stalled_after`, but there is nothing to read.
            await until(lambda: len(manager.times("WATCHDOG")) >= 3)  # noqa: B023
            assert longest_gap(manager, ready, time.monotonic()) < WATCHDOG
        for how in daemons:
            await send(cluster, f"{unique}-{how}", 10)
        for how, (member, manager) in daemons.items():
            await until(lambda: time.monotonic() - manager.times("WATCHDOG")[-1] > WATCHDOG, 30)  # noqa: B023
            if how == "hang":
                (output,) = member.events("watchdog notifications stopped")
                assert "nothing has been fetched or processed" in output["reason"]
                assert manager.messages[-1].at > manager.times("WATCHDOG")[-1] + 1, "the rest is still reported"
            # As systemd then does: the traceback of each thread is logged.
            member.signal(signal.SIGABRT)
            assert await member.ended() == -signal.SIGABRT
            assert "Current thread" in member.err.read_text()


async def test_the_end_of_a_run_of_others_does_not_stop_the_daemon(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """The daemon finishes it and starts its own: the service manager would end a daemon that reports STOPPING."""
    await create_topic(cluster.connect, unique, 1)
    await send_one(cluster, unique)
    of_others = settings(cluster.connect, unique, subscription={"stop_at": "end", "run": "monday"})
    async with kzconsumer.connect(of_others) as consumer:
        await consumer.create_message_streams({unique: 1})
        with anyio.fail_after(30):
            while consumer.run is None:
                await anyio.sleep(0.02)
    await send_one(cluster, unique)  # for the second run: a member without records would not join the group
    with service_manager(f"@{tmp_path}") as manager:
        member = Daemon(tmp_path, cluster.connect, unique, {unique: 1}, "", "smallest")
        member.environment = {"NOTIFY_SOCKET": manager.address, "KZCONSUMER__SUBSCRIPTION__STOP_AT": "end"}
        member.environment["KZCONSUMER__SUBSCRIPTION__RUN"] = "tuesday"
        member.start()
        try:
            assert await member.ended(40) == 0
        finally:
            assert member.process is not None
            if member.process.poll() is None:
                member.process.kill()
                member.process.wait()
        assert len(member.events("previous run finished, starting our own")) == 1
        await until(lambda: manager.status == "stopped", 10)
        output = [next(iter(each.fields)) for each in manager.messages if {"READY", "STOPPING"} & each.fields.keys()]
        assert output == ["READY", "READY", "STOPPING", "STOPPING"]


async def send_one(cluster: Cluster, topic: str) -> None:
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, [Sent(0, None, b"1")])


async def test_a_failure_is_the_last_status(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 10)
    with served(tmp_path, cluster.connect, unique, {unique: 1}, HANGING % "refuse") as (member, manager):
        assert await member.ended(60) == 1
    assert manager.status.startswith("failed: tests.support.sinks:refuse raised ")
    assert "the disk is full" in manager.status
    assert manager.messages[-1].fields["STOPPING"] == "1"


async def test_a_stalled_zookeeper_task_sends_no_keep_alive(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 2)
    configured = settings(cluster.connect, unique, zookeeper={"connect": cluster.connect, "session_timeout": "4s"})
    with service_manager(str(tmp_path / "notify")) as manager:
        lease = Lease()
        health = Health(lease, patience=2.0, stalled_after=60.0)
        report = ServiceReport(Manager(manager.address, WATCHDOG), health)
        sessions = Sessions(configured, lease=lease)
        async with sessions.running():
            await ConsumerConnector(sessions).create_message_streams({unique: 1})
            report.ready(sessions)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(report.run)
                await until(lambda: len(manager.times("WATCHDOG")) >= 3)
                assert now() - sessions.task_last_ran < 2.0
                (task,) = (each for each in asyncio.all_tasks() if each.get_name() == "zookeeper session")
                task.cancel()
                await until(lambda: time.monotonic() - manager.times("WATCHDOG")[-1] > WATCHDOG, 20)
                assert manager.messages[-1].at > manager.times("WATCHDOG")[-1] + 1
                tasks.cancel_scope.cancel()
            sessions.leave_within(0.5)
        report.ended(None)
