"""`kzconsumer sandbox up | env | status | topic | produce | migrate | down`: real servers on this machine.

Exit status 1 if an action fails, 3 if no sandbox runs or one of its servers has failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping

import anyio
import msgspec

from kzconsumer.cli.progress import progress
from kzconsumer.errors import MultiFailedError, NodeExistsError
from kzconsumer.figures import plural
from kzconsumer_sandbox.commands.sandbox_text import AFTER, described, shell_variables
from kzconsumer_sandbox.errors import SandboxError
from kzconsumer_sandbox.servers.jars import NEWEST, kafka_version
from kzconsumer_sandbox.servers.readiness import find_faults
from kzconsumer_sandbox.servers.state_file import SandboxState, ServerState, StateFile, default_path

NOT_RUNNING = 3
_END_LIMIT = 5.0
_PARTITIONS = 4


def run(args: argparse.Namespace) -> int:
    """Run the chosen action. Returns the exit status."""
    place = StateFile(args.state or default_path())
    try:
        if args.action == "up":
            from kzconsumer_sandbox.commands.sandbox_up import up

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
    from kzconsumer_sandbox.commands.sandbox_produce import generated, lines, produce

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
    from kzconsumer_sandbox.servers.topics import create_topic, create_topic_in_kraft

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
