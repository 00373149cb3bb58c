"""`kzconsumer sandbox up | status | topic | down`: real servers on this machine.

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
from collections.abc import Mapping
from functools import partial

import anyio
import msgspec

from kzconsumer.errors import MultiFailedError, NodeExistsError
from kzconsumer_sandbox.errors import SandboxError
from kzconsumer_sandbox.servers.download_progress import fetching_progress
from kzconsumer_sandbox.servers.readiness import find_faults
from kzconsumer_sandbox.servers.sandbox import prepare
from kzconsumer_sandbox.servers.state_file import SandboxState, ServerState, StateFile, default_path
from kzconsumer_sandbox.servers.supervisor import READY, supervise
from kzconsumer_sandbox.servers.versions import kafka_version

NOT_RUNNING = 3
_END_LIMIT = 5.0


def run(args: argparse.Namespace) -> int:
    """Run the chosen action. Returns the exit status."""
    place = StateFile(args.state or default_path())
    try:
        if args.action == "up":
            return _up(place, args.kafka_version, args.brokers, foreground=args.foreground)
        if args.action == "status":
            return _status(place, as_json=args.json)
        if args.action == "topic":
            return _topic(place, args.name, args.partitions, dict(args.topic_config))
        return _down(place)
    except SandboxError as error:
        print(f"kzconsumer: {error}", file=sys.stderr)
        return 1


def _up(place: StateFile, version: str, brokers: int, *, foreground: bool) -> int:
    wanted = kafka_version(version)
    if place.running():
        known = place.read()
        what = f"Kafka {known.kafka_version}, process {known.pid}" if known else "starting"
        raise SandboxError(f"a sandbox is running already ({what}); `kzconsumer sandbox down` stops it")
    with fetching_progress() as progress:
        prepare(wanted, progress)
    if foreground:
        anyio.run(supervise, place, version, brokers, partial(_show_foreground, place))
        return 0
    _start_supervisor(place, version, brokers)
    state = place.read()
    if state is None:
        raise SandboxError("the sandbox was stopped while it was starting")
    print(_text(state, {}), *_next_steps(state, place), sep="\n")
    return 0


def _start_supervisor(place: StateFile, version: str, brokers: int) -> None:
    """Returns when the servers are ready. Raises SandboxError with the supervisor's output if they are not."""
    command = [sys.executable, "-m", "kzconsumer_sandbox.servers.supervisor", "--state", str(place.path)]
    command += ["--kafka-version", version, "--brokers", str(brokers)]
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


def _status(place: StateFile, *, as_json: bool) -> int:
    running = place.running()
    state = place.read()
    faults = find_faults(state) if running and state is not None else {}
    if as_json:
        shown = _as_builtins(state, faults) if running and state is not None else {}
        print(msgspec.json.encode({"running": running, **shown}).decode())
    elif running:
        print(_text(state, faults) if state is not None else "a sandbox is starting")
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
    from kzconsumer.logs import setup
    from kzconsumer_sandbox.servers.topics import create_topic

    setup.configure("warning", "auto")
    state = place.read()
    if state is None or not place.running():
        raise SandboxError("no sandbox is running; `kzconsumer sandbox up` starts one")
    if not state.ready:
        raise SandboxError("the sandbox is starting: try again")
    faults = find_faults(state)
    if faults:
        raise SandboxError(f"not all servers are running\n{_text(state, faults)}")
    try:
        anyio.run(create_topic, state.zookeeper_connect, name, partitions, config)
    except MultiFailedError as error:
        if not isinstance(error.error, NodeExistsError):
            raise
        raise SandboxError(f"topic {name} exists already") from error
    print(f"created the topic {name} with {partitions} partition(s)")
    return 0


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


def _show_foreground(place: StateFile, state: SandboxState) -> None:
    print(_text(state, {}), *_next_steps(state, place), "Ctrl-C stops it.", sep="\n", flush=True)


def _next_steps(state: SandboxState, place: StateFile) -> list[str]:
    where = "" if place.path == default_path().absolute() else f" --state {shlex.quote(str(place.path))}"
    return [
        f'In group.toml:    [zookeeper] connect = "{state.zookeeper_connect}"',
        f"For a producer:   bootstrap.servers={state.bootstrap}",
        f"Create a topic:   kzconsumer sandbox topic orders --partitions 4{where}",
    ]


def _text(state: SandboxState, faults: Mapping[ServerState, str]) -> str:
    if not state.ready:
        return f"Kafka {state.kafka_version} is starting (process {state.pid})"
    lines = [f"Kafka {state.kafka_version}, {len(state.brokers)} broker(s), supervisor process {state.pid}"]
    marks = {server: f"  ({fault})" for server, fault in faults.items()}
    lines.append(f"  zookeeper  {state.zookeeper_connect}{marks.get(state.zookeeper, '') if state.zookeeper else ''}")
    lines += [f"  broker {each.id}   {each.host}:{each.port}{marks.get(each, '')}" for each in state.brokers]
    lines.append(f"  logs       {state.folder}")
    return "\n".join(lines)
