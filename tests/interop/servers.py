"""Three ZooKeeper servers and two brokers, and the faults that happen to them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio import to_thread

from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.configuration import QUICK_START
from kzconsumer_sandbox.servers.jars import NEWEST, cache_folder, find_java, kafka_version, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.interop.committed import committed
from tests.interop.evidence import Span
from tests.interop.schedule import OF_ZOOKEEPER, Fault, What
from tests.interop.txn_log import Txn, read_folder
from tests.support.class_archive import ClassArchive
from tests.support.ensemble import Ensemble, EnsembleServer, ensemble

CHROOT = "/interop"
BROKERS = 2
VERSION = kafka_version("1.1.1")
"""Of the brokers: kafka-node misreads the end of the responses in which newer ones convert records to its format, and
delivers record 0 of a partition for ever."""
CONFIG = {
    "default.replication.factor": BROKERS,
    "offsets.topic.replication.factor": BROKERS,
    "transaction.state.log.replication.factor": BROKERS,
    "unclean.leader.election.enable": "false",
    "replica.lag.time.max.ms": 5000,
}
LIMIT = 60.0


class InteropServers:
    def __init__(self, three: Ensemble, cluster: Cluster) -> None:
        self.three = three
        self.cluster = cluster
        self.disturbed: list[Span] = []
        """When a fault of a server was under way, and until it served again."""

    async def suffer(self, fault: Fault) -> None:
        began = time.time()
        try:
            if fault.what in OF_ZOOKEEPER:
                await self._lead_fails(fault)
            else:
                await self._broker_ends(fault)
        finally:
            self.disturbed.append(Span(began, time.time()))

    async def _lead_fails(self, fault: Fault) -> None:
        leader = await self._leader()
        if fault.what is What.KILL_LEADER:
            leader.kill()
            await anyio.sleep(fault.lasts)
            leader.start()
        else:
            leader.send_signal(signal.SIGSTOP)
            await anyio.sleep(fault.lasts)
            leader.send_signal(signal.SIGCONT)
        await to_thread.run_sync(self.three.wait_ready, LIMIT)

    async def _leader(self) -> EnsembleServer:
        """When no election is under way, in which another fault would stop the ensemble."""
        with anyio.fail_after(LIMIT):
            while True:
                roles = {server: server.role for server in self.three.servers}
                if sorted(roles.values()) == ["follower", "follower", "leader"]:
                    return next(server for server, role in roles.items() if role == "leader")
                await anyio.sleep(0.1)

    async def _broker_ends(self, fault: Fault) -> None:
        broker = self.cluster.brokers[int(fault.target)]
        if fault.what is What.KILL_BROKER:
            broker.kill()
        else:
            broker.send_signal(signal.SIGTERM)
            try:
                await to_thread.run_sync(broker.wait_ended, LIMIT)
            except SandboxError:
                broker.kill()
        await anyio.sleep(fault.lasts)
        with anyio.fail_after(LIMIT):
            while True:
                await to_thread.run_sync(broker.wait_startable)
                broker.start()
                try:
                    await to_thread.run_sync(broker.wait_ready)
                    return
                except SandboxError:  # its former session was still there
                    broker.kill()

    def end(self) -> list[Txn]:
        """Kill all servers; returns what ZooKeeper has committed."""
        self.cluster.kill()
        for server in self.three.servers:
            server.kill()
        return committed([read_folder(server.folder / "data" / "version-2") for server in self.three.servers])


@asynccontextmanager
async def interop_servers(folder: Path) -> AsyncIterator[InteropServers]:
    """Running; killed at the end. To be entered in the main thread, with which the servers end."""
    java = find_java()
    jars = resolve_jars(VERSION.jars)
    archives = cache_folder() / "class-archives"
    archives.mkdir(parents=True, exist_ok=True)
    tuning = (*QUICK_START, *(ClassArchive(archives, VERSION.number, java, jars).loading() or ()))
    with ensemble(folder, java, resolve_jars(NEWEST.jars)) as three:
        cluster = Cluster(
            three.connect, VERSION, folder, java, jars, chroot=CHROOT, brokers=BROKERS, heap="160m", config=CONFIG,
            tuning=tuning,
        )  # fmt: skip
        cluster.start()
        try:
            await asyncio.to_thread(cluster.wait_ready)
            yield InteropServers(three, cluster)
        finally:
            cluster.kill()
