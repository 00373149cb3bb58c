"""Archives of Java classes: a Java that starts with one need not read, check and link them, which is half of its start.

Each is written by a program of one Java and one set of jars as it ends, and kept in a folder from run to run. A Java
that cannot use an archive starts without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

#: Classes of released jars are as their compilers made them: looking for faults in them is a fifth of the start of a
#: Java without an archive, whose classes were looked at when it was written.
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


def writing(archive: Path) -> tuple[str, ...]:
    """The flags of a Java that writes the archive when it ends in its own way."""
    return f"-XX:ArchiveClassesAtExit={archive}", *_QUIET


class ClassArchive:
    """The archive of this name, in a folder that exists, for one Java and one set of jars.

    `first`: what the class path begins with, if that is not the set.

    The file's size is in its name: an archive that was cut off is fatal to Java.
    """

    def __init__(self, folder: Path, name: str, java: Path, jars: Path, first: str = "") -> None:
        self._folder = folder
        self._name = name
        self._prefix = f"{name}-{_key(java, jars, first)}"

    def loading(self) -> tuple[str, ...] | None:
        """The flags of a Java that loads it; none if this Java writes none. None while there is no archive."""
        for file in self._folder.glob(f"{self._prefix}-*.jsa"):
            size = file.stat().st_size
            if file.stem == f"{self._prefix}-{size}":
                return (f"-XX:SharedArchiveFile={file}", *_QUIET) if size else ()
        return None

    def made(self, run: Callable[[Path], None]) -> tuple[str, ...]:
        """The same flags; if there is no archive, `run` runs a program that writes it. Blocks other processes."""
        with (self._folder / f"{self._name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (flags := self.loading()) is None:
                self._write(run)
                flags = self.loading()
        assert flags is not None
        return flags

    def _write(self, run: Callable[[Path], None]) -> None:
        for old in self._folder.glob(f"{self._name}-*.jsa"):
            old.unlink()
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            made = Path(scratch, "made.jsa")
            run(made)
            made.touch()
            made.rename(self._folder / f"{self._prefix}-{made.stat().st_size}.jsa")


def _key(java: Path, jars: Path, first: str) -> str:
    """Another one for another Java, and for jars that were installed at another place or time."""
    version = subprocess.run([str(java), "-version"], capture_output=True, check=True).stderr
    return hashlib.sha256(version + f"{jars} {jars.stat().st_mtime_ns}{first}".encode()).hexdigest()[:16]
