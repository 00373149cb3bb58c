"""The process that runs the sandbox until SIGTERM, SIGINT or SIGHUP: `python -m` this module, or `up --foreground`.

At SIGUSR1 it takes the next step of the migration from ZooKeeper to KRaft. It does not restart a server that exits;
`sandbox status` shows it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskStatus

from kzconsumer.own_files import own_directory
from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.configuration import Ports
from kzconsumer_sandbox.servers.jars import find_java
from kzconsumer_sandbox.servers.kafka_servers import BrokerServer, ZooKeeperServer
from kzconsumer_sandbox.servers.sandbox import Migration, Sandbox
from kzconsumer_sandbox.servers.state_file import FOLDER_PREFIX, KCAT_CONFIG, SandboxState, ServerState, StateFile

READY = "ready"
"""Printed when the state file is complete; any other output is the reason of a failure."""


async def supervise(
    place: StateFile, version: str, ports: Ports, on_ready: Callable[[SandboxState], None], *, kraft: bool = False
) -> None:
    """Run a sandbox until a signal. Raises SandboxError if it cannot be started or one is running already.

    The scratch directory is removed, except after a failed start, for its logs.
    """
    failure: SandboxError | None = None
    with place.hold():
        try:
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=own_directory("sandbox")))
        except OSError as error:
            raise SandboxError(str(error)) from None
        starting = SandboxState(os.getpid(), version, str(folder))
        place.write(starting)
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(_cancel_on_signal, tasks.cancel_scope)
                async with Sandbox(folder, version, ports=ports, kraft=kraft) as sandbox:
                    (folder / KCAT_CONFIG).write_text(f"bootstrap.servers={sandbox.bootstrap}\n")
                    state = describe(sandbox, starting)
                    place.write(state)
                    with anyio.open_signal_receiver(signal.SIGUSR1) as asked:
                        on_ready(state)
                        await _migrate(sandbox, place, state, asked)
        except* SandboxError as group:
            failure = next(leaf for leaf in group.exceptions if isinstance(leaf, SandboxError))
        finally:
            place.remove()
            if failure is None:
                shutil.rmtree(folder, ignore_errors=True)
    if failure is not None:
        raise failure


async def _migrate(
    sandbox: Sandbox, place: StateFile, state: SandboxState, asked: AsyncIterator[signal.Signals]
) -> None:
    """A step at each signal; never returns."""
    migration = Migration(sandbox.cluster, sandbox.folder / "controller", find_java())
    try:
        for step in () if state.kraft else migration.steps:
            await anext(asked)
            await step()
            migrated = (*state.migrated, step.__name__)
            state = msgspec.structs.replace(describe(sandbox, state), kraft=True, migrated=migrated)
            place.write(state)
        await anyio.sleep_forever()
    finally:
        migration.kill()


async def _cancel_on_signal(scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


def describe(sandbox: Sandbox, starting: SandboxState) -> SandboxState:
    """The state of a sandbox that serves."""
    return msgspec.structs.replace(
        starting,
        ready=True,
        kafka_version=sandbox.cluster.version,
        kraft=sandbox.cluster.kraft,
        zookeeper_connect=sandbox.zookeeper_connect,
        bootstrap=sandbox.bootstrap,
        zookeeper=_server(0, sandbox.zookeeper),
        brokers=tuple(_server(broker.id, broker) for broker in sandbox.brokers.values()),
    )


def _server(number: int, server: ZooKeeperServer | BrokerServer) -> ServerState:
    return ServerState(number, server.host, server.port, server.pid)


def _report_and_detach(state: SandboxState) -> None:
    """Report to the parent process, then replace its pipe by a log file."""
    print(READY, flush=True)
    log = os.open(Path(state.folder, "supervisor.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a sandbox until SIGTERM.")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--kafka-version", required=True)
    parser.add_argument("--zookeeper-port", type=int, required=True)
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    parser.add_argument("--kraft", action="store_true")
    args = parser.parse_args()
    try:
        ports = Ports(args.zookeeper_port, tuple(args.ports))
        run = partial(supervise, kraft=args.kraft)
        anyio.run(run, StateFile(args.state), args.kafka_version, ports, _report_and_detach)
    except SandboxError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
