"""`kzconsumer sandbox up | env | status | topic | produce | migrate | down`: real servers on this machine.

Exit status 1 if an action fails, 3 if no sandbox runs or one of its servers has failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
from confluent_kafka import KafkaError, Message, Producer

from kzconsumer.cli.arguments import progress
from kzconsumer.display import plural
from kzconsumer.errors import MultiFailedError, NodeExistsError
from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.configuration import BROKER_PORT, ZOOKEEPER_PORT, Ports
from kzconsumer_sandbox.servers.jars import NEWEST, kafka_version
from kzconsumer_sandbox.servers.readiness import find_faults
from kzconsumer_sandbox.servers.sandbox import prepare
from kzconsumer_sandbox.servers.state_file import KCAT_CONFIG, SandboxState, ServerState, StateFile, default_path
from kzconsumer_sandbox.servers.supervisor import READY, supervise

# `produce`: lines of standard input, or generated orders, as records of a topic.

LIMIT = 30.0
_ORDER = b'{"id":%d,"customer":"%s","article":"article-%04d","quantity":%d,"cents":%d}'

Record = tuple[bytes | None, bytes]
"""Key and value."""


def generated(number: int) -> Iterator[Record]:
    for n in range(number):
        customer = b"customer-%02d" % (n * 7 % 20)
        yield customer, _ORDER % (n, customer, n * 104_729 % 10_000, n % 9 + 1, n * 31 % 100_000)


def lines() -> Iterator[Record]:
    for line in sys.stdin.buffer:
        yield None, line.rstrip(b"\n")


def produce(bootstrap: str, kafka_version: str, topic: str, records: Iterable[Record]) -> int:
    """Returns the number of records once the brokers have them all. Raises SandboxError."""
    faults: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            faults.append(str(error))

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **_compatibility(kafka_version)})
    number = 0
    try:
        for key, value in records:
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=delivered)
                    break
                except BufferError:  # librdkafka's queue is full
                    producer.poll(0.1)
            producer.poll(0)
            number += 1
    finally:  # Ctrl-C, too: what was entered until then is sent
        left = producer.flush(LIMIT)
    if left or faults:
        why = faults[0] if faults else f"no answer within {LIMIT:.0f} s"
        raise SandboxError(f"{left + len(faults)} of {number} records were not produced: {why}")
    return number


def _compatibility(kafka_version: str) -> dict[str, Any]:
    """Before 0.10 brokers do not answer the request for their versions."""
    old = kafka_version.startswith("0.8")
    return {"api.version.request": False, "broker.version.fallback": kafka_version} if old else {}


# A sandbox as text: its servers, what to do with it next, and its addresses for a shell.

AFTER = {
    "copy": "a KRaft controller, which also writes to ZooKeeper",
    "change_mode": "brokers in KRaft mode; the controller also writes to ZooKeeper",
    "finish": "KRaft; the cluster has left ZooKeeper",
    "upgrade": "KRaft; the cluster has left ZooKeeper",
}
"""The cluster after each step of its migration."""


def described(state: SandboxState, faults: Mapping[ServerState, str]) -> str:
    if not state.ready:
        return f"Kafka {state.kafka_version} is starting (process {state.pid})"
    mode = f" ({AFTER[state.migrated[-1]]})" if state.migrated else " (KRaft)" if state.kraft else ""
    brokers = plural(len(state.brokers), "broker")
    lines = [f"Kafka {state.kafka_version}{mode}, {brokers}, supervisor process {state.pid}"]
    marks = {server: f"  ({fault})" for server, fault in faults.items()}
    lines.append(f"  zookeeper  {state.zookeeper_connect}{marks.get(state.zookeeper, '') if state.zookeeper else ''}")
    lines += [f"  broker {each.id}   {each.host}:{each.port}{marks.get(each, '')}" for each in state.brokers]
    lines.append(f"  logs       {state.folder}")
    return "\n".join(lines)


def next_steps(place: StateFile) -> list[str]:
    where = "" if place.path == default_path().absolute() else f" --state {shlex.quote(str(place.path))}"
    return [
        f'Use it in this shell:  eval "$(kzconsumer sandbox env{where})"',
        f"Produce records:       kzconsumer sandbox produce orders --records 1000{where}",
        f"Stop it:               kzconsumer sandbox down{where}",
    ]


def shell_variables(state: SandboxState) -> Iterator[str]:
    """Commands for bash, zsh and other shells of POSIX."""
    yield f"export KZCONSUMER__ZOOKEEPER__CONNECT={shlex.quote(state.zookeeper_connect)}"
    if state.kraft:
        addresses = ", ".join(f'"{each}"' for each in state.bootstrap.split(","))
        yield f"export KZCONSUMER__BROKERS__BOOTSTRAP={shlex.quote(f'[{addresses}]')}"
    yield f"export BOOTSTRAP_SERVERS={shlex.quote(state.bootstrap)}"
    yield f"export KCAT_CONFIG={shlex.quote(str(Path(state.folder, KCAT_CONFIG)))}"


NOT_RUNNING = 3
_END_LIMIT = 5.0
_PARTITIONS = 4


def run(args: argparse.Namespace) -> int:
    """Run the chosen action. Returns the exit status."""
    place = StateFile(args.state or default_path())
    try:
        if args.action == "up":
            return up(place, args)
        if args.action == "env":
            return _env(place)
        if args.action == "status":
            return _status(place, as_json=args.output == "json")
        if args.action == "topic":
            return _topic(place, args.name, args.partitions, dict(args.topic_config))
        if args.action == "produce":
            return _produce(place, args.name, args.records)
        if args.action == "migrate":
            return _migrate(place)
        return _down(place)
    except SandboxError as error:
        print(f"kzconsumer: {error}", file=sys.stderr)
        return 1


def _env(place: StateFile) -> int:
    print(*shell_variables(_serving(place)), sep="\n")
    return 0


def _serving(place: StateFile) -> SandboxState:
    """The state of the running sandbox. Raises SandboxError unless all of its servers serve."""
    state = place.read()
    if state is None or not place.running():
        raise SandboxError("no sandbox is running; `kzconsumer sandbox up` starts one")
    if not state.ready:
        raise SandboxError("the sandbox is starting: try again")
    faults = find_faults(state)
    if faults:
        raise SandboxError(f"not all servers are running\n{described(state, faults)}")
    return state


def _status(place: StateFile, *, as_json: bool) -> int:
    running = place.running()
    state = place.read()
    faults = find_faults(state) if running and state is not None else {}
    if as_json:
        shown = _as_builtins(state, faults) if running and state is not None else {}
        print(msgspec.json.encode({"running": running, **shown}).decode())
    elif running:
        print(described(state, faults) if state is not None else "a sandbox is starting")
    elif state is not None:
        print(f"no sandbox is running; one was killed and left {state.folder}, which `kzconsumer sandbox down` removes")
    else:
        print("no sandbox is running")
    return 0 if running and not faults else NOT_RUNNING


def _as_builtins(state: SandboxState, faults: Mapping[ServerState, str]) -> dict[str, object]:
    """The state, with `fault` for each server (null if it serves) and `serving` for all."""

    def shown(server: ServerState) -> dict[str, object]:
        return {**msgspec.to_builtins(server), "fault": faults.get(server)}

    return {
        **msgspec.to_builtins(state),
        "serving": state.ready and not faults,
        "zookeeper": shown(state.zookeeper) if state.zookeeper else None,
        "brokers": [shown(broker) for broker in state.brokers],
    }


def _topic(place: StateFile, name: str, partitions: int, config: Mapping[str, str]) -> int:
    if not _create(_serving(place), name, partitions, config):
        raise SandboxError(f"topic {name} exists already")
    print(f"created the topic {name} with {plural(partitions, 'partition')}")
    return 0


def _produce(place: StateFile, name: str, number: int | None) -> int:
    state = _serving(place)
    if _create(state, name, _PARTITIONS, {}):
        print(f"created the topic {name} with {_PARTITIONS} partitions", file=sys.stderr)
    if number is None and sys.stdin.isatty():
        print("each line is a record; Ctrl-D ends", file=sys.stderr)
    produced = produce(state.bootstrap, state.kafka_version, name, generated(number) if number else lines())
    print(f"produced {plural(produced, 'record')} to {name}")
    return 0


def _create(state: SandboxState, topic: str, partitions: int, config: Mapping[str, str]) -> bool:
    """Whether the topic was created; False if it exists."""
    from kzconsumer.logs import setup
    from kzconsumer_sandbox.servers.topic_creation import create_topic, create_topic_in_kraft

    if state.kraft:
        return create_topic_in_kraft(state.bootstrap, topic, partitions, config)
    setup.configure("warning", "auto")
    try:
        anyio.run(create_topic, state.zookeeper_connect, topic, partitions, config)
    except MultiFailedError as error:
        if not isinstance(error.error, NodeExistsError):
            raise
        return False
    return True


def _migrate(place: StateFile) -> int:
    """The next step; returns when it is done."""
    state = _serving(place)
    if len(state.migrated) == len(AFTER):
        raise SandboxError("the migration is complete")
    if not state.migrated and (state.kraft or not kafka_version(state.kafka_version).kraft):
        why = "has no ZooKeeper to leave" if state.kraft else "cannot leave ZooKeeper"
        able = f"`kzconsumer sandbox up` starts a {NEWEST.number} that can"
        raise SandboxError(f"this Kafka {state.kafka_version} {why}: {able}")
    with progress("migrating, a step takes up to a minute"):
        os.kill(state.pid, signal.SIGUSR1)
        while place.running():
            if (now := place.read()) is not None and now.migrated != state.migrated:
                print(f"step {len(now.migrated)} of {len(AFTER)}")
                print(described(now, {}))
                return 0
            time.sleep(0.1)
    raise SandboxError(f"the sandbox has ended in this step; its logs are in {state.folder}")


def _down(place: StateFile) -> int:
    state = place.read()
    if not place.running():
        print("no sandbox is running" + ("; removed the files of a killed one" if place.remove_stale() else ""))
        return 0
    if state is None:
        raise SandboxError("a sandbox is starting: try again")
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.kill(state.pid, number)
        if _ended(place):
            place.remove_stale()
            print("the sandbox is stopped")
            return 0
    raise SandboxError(f"the supervisor, process {state.pid}, does not stop")


def _ended(place: StateFile) -> bool:
    deadline = time.monotonic() + _END_LIMIT
    while place.running():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# `up`: start the servers under a supervisor, in the background or in this process.


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
