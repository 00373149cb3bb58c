"""A sandbox as text: its servers, what to do with it next, and its addresses for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from kzconsumer.figures import plural
from kzconsumer_sandbox.servers.state_file import KCAT_CONFIG, SandboxState, ServerState, StateFile, default_path

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
