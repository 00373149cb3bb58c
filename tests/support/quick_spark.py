"""Sparks that start at a third of the price: what their Java is told, and the archive of classes that it loads.

Owns the archive, in pytest's cache; it is made by a Spark of its own (`spark_training`).
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

# What lives for seconds never earns back what the second compiler takes.
_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def quick_spark(cache: Path) -> Mapping[str, str]:
    """The environment for whatever starts a Spark. The first time it blocks for half a minute."""
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
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
