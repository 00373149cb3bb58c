"""Kafka's command-line tools, run one after the other in one Java: a start of Java costs more than most tools do."""

from __future__ import annotations

import threading
from functools import cached_property
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway

from tests.support.java_program import JavaProgram
from tests.support.py4j_gateway import gateway_of


class KafkaTools:
    """The tools of one version. `command` starts py4j's server."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._program = JavaProgram(command, folder)
        self._lock = threading.Lock()

    def run(self, tool: str, *arguments: str) -> str:
        """What the tool writes on both streams: some report their results as log lines. Blocks."""
        with self._lock:
            java: Any = self._gateway.jvm
            self._output.reset()
            given = self._gateway.new_array(java.String, len(arguments))
            for number, argument in enumerate(arguments):
                given[number] = argument
            main = java
            for name in tool.split("."):
                main = getattr(main, name)
            main.main(given)
            return str(self._output.toString())

    @cached_property
    def _gateway(self) -> JavaGateway:
        return gateway_of(self._program)

    @cached_property
    def _output(self) -> Any:
        """Collects both streams. Scala and log4j keep those that they find when they are first used."""
        java: Any = self._gateway.jvm
        output = java.java.io.ByteArrayOutputStream()
        stream = java.java.io.PrintStream(output, True)
        java.System.setOut(stream)
        java.System.setErr(stream)
        return output

    def kill(self) -> None:
        if "_gateway" in self.__dict__:
            self._gateway.shutdown()  # else py4j reports that it cannot tell a killed Java what it no longer needs
        self._program.kill()
