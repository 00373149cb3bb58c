"""Sparks that start in a third of the time: the options of their Java, and the archive of classes that it loads.

The archive is in pytest's cache: Java need not read and verify its classes. It is made by a Spark of its own
(`spark_training`) for one Java and one set of jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kzconsumer_sandbox.servers.jars import find_java

# Short-lived processes do not benefit from the second compiler.
_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def quick_spark(cache: Path) -> Mapping[str, str]:
    """The environment for anything that starts a Spark. The first time it blocks for half a minute."""
    archive = _archive(cache)
    flags = f"{_SHORT_LIVED} -XX:SharedArchiveFile={archive} {_QUIET}" if archive else _SHORT_LIVED
    return {"SPARK_LAUNCHER_OPTS": _SHORT_LIVED, "SPARK_SUBMIT_OPTS": flags}


def _archive(cache: Path) -> Path | None:
    """None if this Java makes none. Its size is in its name: a truncated one crashes Java."""
    key = _key()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        whole = [each for each in cache.glob(f"{key}-*.jsa") if each.stem == f"{key}-{each.stat().st_size}"]
        archive = whole[0] if whole else _make(cache, key)
    return archive if archive.stat().st_size else None


def _make(cache: Path, key: str) -> Path:
    for old in cache.glob("*.jsa"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch, "made.jsa")
        flags = f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={made} {_QUIET}"
        environment = {**os.environ, "SPARK_LAUNCHER_OPTS": _SHORT_LIVED, "SPARK_SUBMIT_OPTS": flags}
        command = [sys.executable, "-m", "tests.support.spark_training", str(Path(scratch, "spark"))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        made.touch()
        return made.rename(cache / f"{key}-{made.stat().st_size}.jsa")


def _key() -> str:
    """Different for another Java, and for jars installed at another place or time."""
    java = subprocess.run([str(find_java()), "-version"], capture_output=True, check=True).stderr
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations
    jars = Path(found.submodule_search_locations[0], "jars")
    return hashlib.sha256(java + f"{jars} {jars.stat().st_mtime_ns}".encode()).hexdigest()[:16]
