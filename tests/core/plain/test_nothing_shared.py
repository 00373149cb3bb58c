"""Nothing is shared by accident with other users, or with children that a process forks: one lock, one way to make
directories below shared ones, one place for sockets.
"""

from __future__ import annotations

import ast
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kzconsumer.status.web_server import listening_socket

ROOT = Path(__file__).parents[3]
CALLS = {
    *("flock", "lockf", "fcntl", "ioctl", "F_SETLK", "F_OFD_SETLK"),
    *("mkdtemp", "mkstemp", "mktemp", "TemporaryDirectory", "TemporaryFile", "NamedTemporaryFile"),
    *("gettempdir", "gettempdirb", "SpooledTemporaryFile", "mkfifo", "shm_open", "SharedMemory"),
    *("bind", "listen", "socketpair", "create_server", "start_server", "create_datagram_endpoint"),
    *("create_unix_server", "start_unix_server", "create_unix_listener", "create_tcp_listener"),
}
OF_OURS = {"signature.bind", "queue.listen", "start_server"}
"""Functions that have such a name and are others."""
KNOWN = {
    "kzconsumer/own_files.py": {"gettempdir", "lockf"},
    "kzconsumer/connecting.py": {"listen"},
    # At the address that the operator names; `connecting` listens.
    "kzconsumer/status/web_server.py": {"bind", "listen"},
    # For authors' tests, which run as one user.
    "kzconsumer/testing/sink_group.py": {"TemporaryDirectory"},
    # Compares what `own_directory` is given.
    "plugins/files/kzconsumer_files/private_directory.py": {"gettempdir"},
    "plugins/spark/kzconsumer_spark/daemon/requirements.py": {"gettempdir"},
    # In `own_directory`.
    "plugins/spark/kzconsumer_spark/source/prompt_commits.py": {
        "gettempdir",
        "TemporaryDirectory",
        "create_unix_listener",
    },
    # In the member's own directory: tries whether there can be sockets.
    "plugins/spark/kzconsumer_spark/worker_protocol/spark_settings.py": {"bind", "TemporaryDirectory"},
    # In an executor's own directory, for the files of one task.
    "plugins/spark/kzconsumer_spark/executors/task_files.py": {"TemporaryDirectory"},
    "plugins/sandbox/kzconsumer_sandbox/demo/scenario.py": {"mkdtemp"},
    "plugins/sandbox/kzconsumer_sandbox/servers/supervisor.py": {"mkdtemp"},
    # Looks for free ports; nothing listens.
    "plugins/sandbox/kzconsumer_sandbox/servers/configuration.py": {"bind"},
}


def calls(path: Path) -> Iterator[str]:
    """Those of CALLS in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) not in OF_OURS:
            yield called.rpartition(".")[2]


def test_locks_temporary_directories_and_sockets_are_made_in_known_places() -> None:
    """Another place uses `ProcessLock`, `own_directory` or `connecting.listen`, or is listed with its reason."""
    found = defaultdict(set)
    for folder in (ROOT / "kzconsumer", *(ROOT / "plugins").glob("*/kzconsumer_*")):
        for path in folder.rglob("*.py"):
            for name in CALLS.intersection(calls(path)):
                found[str(path.relative_to(ROOT))].add(name)
    assert found == KNOWN


@pytest.mark.parametrize("address", [lambda _: "127.0.0.1:{port}", lambda folder: f"unix:{folder}/socket"])
def test_a_forked_child_does_not_keep_the_port(address: Callable[[Path], str], tmp_path: Path) -> None:
    """A sink's worker may outlive a killed daemon, whose successor listens at the same address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = address(tmp_path).format(port=port)
    listening = listening_socket(where, "test")
    ready, forked = os.pipe()
    if (child := os.fork()) == 0:
        os.write(forked, b"!")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(ready, 1)
        listening.close()  # as the end of the process does
        listening_socket(where, "test").close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(forked)
