"""`kzconsumer sandbox up`: start the servers under a supervisor, in the background or in this process."""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial

import anyio

from kzconsumer.cli.progress import progress
from kzconsumer_sandbox.commands.sandbox_text import described, next_steps
from kzconsumer_sandbox.errors import SandboxError
from kzconsumer_sandbox.servers.jars import kafka_version
from kzconsumer_sandbox.servers.ports import BROKER_PORT, ZOOKEEPER_PORT, Ports
from kzconsumer_sandbox.servers.sandbox import prepare
from kzconsumer_sandbox.servers.state_file import SandboxState, StateFile
from kzconsumer_sandbox.servers.supervisor import READY, supervise


def up(place: StateFile, args: argparse.Namespace) -> int:
    version = kafka_version(args.kafka_version)
    if args.kraft and not version.kraft:
        raise SandboxError(f"Kafka {version.number} has no KRaft mode here; 3.9.1 and 4.2.0 do")
    if place.running():
        known = place.read()
        what = f"Kafka {known.kafka_version}, process {known.pid}" if known else "starting"
        raise SandboxError(f"a sandbox is running already ({what}); `kzconsumer sandbox down` stops it")
    ports = Ports.chosen(args.zookeeper_port, args.port, args.brokers)
    with progress("fetching Kafka's jars (kB)") as fetched:
        prepare(version, fetched)
    if args.foreground:
        run = partial(supervise, kraft=args.kraft)
        anyio.run(run, place, version.number, ports, partial(_show_foreground, place, args))
        return 0
    with progress("starting ZooKeeper and Kafka"):
        _start_supervisor(place, version.number, ports, kraft=args.kraft)
    state = place.read()
    if state is None:
        raise SandboxError("the sandbox was stopped while it was starting")
    _show(place, args, state)
    return 0


def _start_supervisor(place: StateFile, version: str, ports: Ports, *, kraft: bool) -> None:
    """Returns when the servers are ready. Raises SandboxError with the supervisor's output if they are not."""
    command = [sys.executable, "-m", "kzconsumer_sandbox.servers.supervisor", "--state", str(place.path)]
    command += ["--kafka-version", version, "--zookeeper-port", str(ports.zookeeper)]
    command += ["--ports", *map(str, ports.brokers), *(["--kraft"] if kraft else [])]
    # In a session of its own: Ctrl-C and the end of this terminal do not reach it.
    supervisor = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd="/",
        text=True,
        errors="replace",
    )
    assert supervisor.stdout is not None
    output: list[str] = []
    try:
        with supervisor.stdout as lines:
            for line in lines:
                if line.rstrip("\n") == READY:
                    return
                output.append(line)
        supervisor.wait()
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        raise
    raise SandboxError("".join(output).strip() or f"the supervisor exited with status {supervisor.returncode}")


def _show_foreground(place: StateFile, args: argparse.Namespace, state: SandboxState) -> None:
    _show(place, args, state)
    print("Ctrl-C stops it.", flush=True)


def _show(place: StateFile, args: argparse.Namespace, state: SandboxState) -> None:
    """Says so if the usual ports were asked for and are not what the servers have."""
    assert state.zookeeper is not None
    usual = [(args.zookeeper_port, ZOOKEEPER_PORT, state.zookeeper.port, "ZooKeeper")]
    usual += [(args.port, BROKER_PORT + n, each.port, f"broker {each.id}") for n, each in enumerate(state.brokers)]
    for given, wanted, port, server in usual:
        if given is None and port != wanted:
            print(f"kzconsumer: port {wanted} is in use, so {server} has port {port}", file=sys.stderr)
    print(described(state, {}), *next_steps(place), sep="\n", flush=True)
