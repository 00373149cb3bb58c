"""`kzconsumer sandbox up | status | down`: real servers on this machine, for trying things out.

Owns no state: the supervisor and its state file do. Called by the command line's dispatcher; exit status 0 on success,
1 when it cannot be done, 3 when nothing runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import msgspec

from kzconsumer.cli.progress import fetching_progress
from kzconsumer.sandbox.failure import SandboxError
from kzconsumer.sandbox.sandbox import prepare
from kzconsumer.sandbox.state_file import SandboxState, StateFile, default_path
from kzconsumer.sandbox.supervisor import READY, supervise
from kzconsumer.sandbox.versions import NEWEST, VERSIONS, kafka_version

NOT_RUNNING = 3
_END_LIMIT = 5.0


def add_arguments(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `sandbox` and its three actions; `args.run` is `run` then."""
    sandbox = subparsers.add_parser("sandbox", help="run a real ZooKeeper and real Kafka brokers on this machine")
    sandbox.set_defaults(run=run)
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument(
        "--state", type=Path, metavar="FILE", help=f"the sandbox's state file (default: {default_path()})"
    )
    actions = sandbox.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser("up", parents=[place], help="start one; returns when it can be used")
    up.add_argument("--kafka-version", default=NEWEST.number, metavar="VERSION", help=f"one of {', '.join(VERSIONS)}")
    up.add_argument("--brokers", type=_positive, default=1, metavar="N", help="number of brokers (default: 1)")
    up.add_argument("--foreground", action="store_true", help="stay, and end the sandbox on Ctrl-C")
    status = actions.add_parser("status", parents=[place], help="say what runs; exit status 3 if nothing does")
    status.add_argument("--json", action="store_true", help="as one JSON object")
    actions.add_parser("down", parents=[place], help="end it and remove its data")


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say; returns the exit status."""
    place = StateFile(args.state or default_path())
    try:
        if args.action == "up":
            return _up(place, args.kafka_version, args.brokers, foreground=args.foreground)
        if args.action == "status":
            return _status(place, as_json=args.json)
        return _down(place)
    except SandboxError as error:
        print(f"kzconsumer: {error}", file=sys.stderr)
        return 1


def _up(place: StateFile, version: str, brokers: int, *, foreground: bool) -> int:
    wanted = kafka_version(version)
    if place.running():
        known = place.read()
        what = f"Kafka {known.kafka_version}, process {known.pid}" if known else "just being started"
        raise SandboxError(f"a sandbox runs already ({what}); `kzconsumer sandbox down` ends it")
    with fetching_progress() as progress:
        prepare(wanted, progress)
    if foreground:
        anyio.run(supervise, place, version, brokers, _show_foreground)
        return 0
    _start_supervisor(place, version, brokers)
    state = place.read()
    if state is None:
        raise SandboxError("the sandbox was taken down while it came up")
    print(_text(state))
    return 0


def _start_supervisor(place: StateFile, version: str, brokers: int) -> None:
    """Returns when its servers serve. Raises SandboxError with its own words when they do not."""
    command = [sys.executable, "-m", "kzconsumer.sandbox.supervisor", "--state", str(place.path)]
    command += ["--kafka-version", version, "--brokers", str(brokers)]
    # A session of its own: neither Ctrl-C nor the end of this terminal reaches it.
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
    said: list[str] = []
    try:
        with supervisor.stdout as lines:
            for line in lines:
                if line.rstrip("\n") == READY:
                    return
                said.append(line)
        supervisor.wait()
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        raise
    raise SandboxError("".join(said).strip() or f"the supervisor ended with status {supervisor.returncode}")


def _status(place: StateFile, *, as_json: bool) -> int:
    running = place.running()
    state = place.read()
    if as_json:
        shown = msgspec.to_builtins(state) if state is not None and running else {}
        print(msgspec.json.encode({"running": running, **shown}).decode())
    elif running:
        print(_text(state) if state is not None else "a sandbox is just being started")
    elif state is not None:
        print(f"no sandbox runs; one was killed and left {state.folder}, which `kzconsumer sandbox down` removes")
    else:
        print("no sandbox runs")
    return 0 if running else NOT_RUNNING


def _down(place: StateFile) -> int:
    state = place.read()
    if not place.running():
        print("no sandbox runs" + ("; removed what a killed one left" if place.remove_stale() else ""))
        return 0
    if state is None:
        raise SandboxError("a sandbox is just being started: try again")
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.kill(state.pid, number)
        if _ended(place):
            place.remove_stale()
            print("the sandbox is down")
            return 0
    raise SandboxError(f"the supervisor, process {state.pid}, does not end")


def _ended(place: StateFile) -> bool:
    deadline = time.monotonic() + _END_LIMIT
    while place.running():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _show_foreground(state: SandboxState) -> None:
    print(_text(state), "Ctrl-C ends it.", sep="\n", flush=True)


def _text(state: SandboxState) -> str:
    if not state.ready:
        return f"Kafka {state.kafka_version} is being started (process {state.pid})"
    lines = [f"Kafka {state.kafka_version}, {len(state.brokers)} broker(s), supervisor process {state.pid}"]
    lines.append(f"  zookeeper  {state.zookeeper_connect}{_dead(state.zookeeper.pid) if state.zookeeper else ''}")
    lines += [f"  broker {each.id}   {each.host}:{each.port}{_dead(each.pid)}" for each in state.brokers]
    lines.append(f"  logs       {state.folder}")
    return "\n".join(lines)


def _dead(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "  (has ended)"
    return ""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number
