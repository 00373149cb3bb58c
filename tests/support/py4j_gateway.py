"""A Java with Kafka's classes that is called from here: py4j's server, as the one program of a process."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway

from tests.support.java_program import JavaProgram

SERVER = "py4j.GatewayServer", "0"
"""Its class, and its argument: any port."""
_START_LIMIT = 30.0


def with_py4j(command: list[str]) -> list[str]:
    """The command that runs `SERVER`, with the Java half of py4j, which PySpark ships."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations
    (jar,) = Path(found.submodule_search_locations[0], "jars").glob("py4j-*.jar")
    at = command.index("-cp") + 1
    return [*command[:at], f"{command[at]}:{jar}", *command[at + 1 :]]


def gateway_of(program: JavaProgram) -> JavaGateway:
    """Blocks until it listens; it prints the port then."""
    deadline = time.monotonic() + _START_LIMIT
    while not (output := program.out.read_text()).endswith("\n"):
        assert program.process.poll() is None, program.err.read_text()
        assert time.monotonic() < deadline, "py4j does not listen"
        time.sleep(0.02)
    return JavaGateway(gateway_parameters=GatewayParameters(port=int(output)))
