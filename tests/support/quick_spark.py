"""Sparks that start in a third of the time: the options of their Java, and the archive of classes that it loads.

The archive is in pytest's cache; it is made by a Spark of its own (`spark_training`).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kzconsumer_sandbox.servers.jars import find_java
from tests.support.class_archive import ClassArchive, writing

# Short-lived processes do not benefit from the second compiler.
_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# Below the limit of the test that waits for it.
_LIMIT = 120.0


def quick_spark(cache: Path) -> Mapping[str, str]:
    """The environment for anything that starts a Spark. The first time it blocks for half a minute."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations
    jars = Path(found.submodule_search_locations[0], "jars")
    return _environment(ClassArchive(cache, "spark", find_java(), jars).made(_train))


def _environment(archive: tuple[str, ...]) -> dict[str, str]:
    return {"SPARK_LAUNCHER_OPTS": _SHORT_LIVED, "SPARK_SUBMIT_OPTS": " ".join((_SHORT_LIVED, *archive))}


def _train(archive: Path) -> None:
    environment = {**os.environ, **_environment(writing(archive))}
    command = [sys.executable, "-m", "tests.support.spark_training", str(archive.parent / "spark")]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        archive.unlink(missing_ok=True)  # Sparks start without one
        return
    assert done.returncode == 0, done.stderr
