"""A Java that is called from here through py4j: started by py4j, or as the one program of a process."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from kzconsumer_sandbox.servers.configuration import QUICK_START
from tests.support.java_program import JavaProgram

SERVER = "py4j.GatewayServer", "0"
"""Its class, and its argument: any port."""
_START_LIMIT = 30.0


def with_py4j(command: list[str]) -> list[str]:
    """The command that runs `SERVER`, with the Java half of py4j, which PySpark ships."""
    at = command.index("-cp") + 1
    return [*command[:at], f"{command[at]}:{_jar()}", *command[at + 1 :]]


def _jar() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations
    (jar,) = Path(found.submodule_search_locations[0], "jars").glob("py4j-*.jar")
    return jar


@contextmanager
def java_gateway(java: Path, classpath: str = "") -> Iterator[JavaGateway]:
    """A JVM with these classes, which ends with the block."""
    port, token, process = launch_gateway(
        classpath=classpath,
        java_path=str(java),
        javaopts=[*QUICK_START],
        jarpath=str(_jar()),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield gateway
    finally:
        gateway.shutdown()
        process.kill()
        process.wait()  # its output is read, and closed, by a thread of py4j
        process.stdin.close()


def gateway_of(program: JavaProgram) -> JavaGateway:
    """Blocks until it listens; it prints the port then."""
    deadline = time.monotonic() + _START_LIMIT
    while not (output := program.out.read_text()).endswith("\n"):
        assert program.process.poll() is None, program.err.read_text()
        assert time.monotonic() < deadline, "py4j does not listen"
        time.sleep(0.02)
    return JavaGateway(gateway_parameters=GatewayParameters(port=int(output)))
