"""A Java program of the tests: a process that ends with them, and what it writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kzconsumer_sandbox.servers import die_with_parent


class JavaProgram:
    """Runs from now on. `out` and `err` are the files it writes."""

    def __init__(self, command: list[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.err = folder / "out", folder / "err"
        launcher = [sys.executable, "-I", "-S", str(Path(die_with_parent.__file__)), str(os.getpid())]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen([*launcher, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
