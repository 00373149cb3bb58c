"""Sparks that start in a third of the time: the options of their Java, and the archive of classes that it loads.

The archive is in pytest's cache. It is made at night, by a Spark of its own (`spark_training`) beside the tests: it
costs as much as it saves in seven starts, and `make test` has fewer. A Spark that starts before it is there does so
without it.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kzconsumer_sandbox.servers.jars import find_java
from tests.support.class_archive import UNVERIFIED, ClassArchive, writing
from tests.support.extent import extent

# Short-lived processes do not benefit from the second compiler.
_SHORT_LIVED = " ".join(("-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m", *UNVERIFIED))
# Tests take the processors meanwhile.
_LIMIT = 600.0


def quick_spark(folder: Path) -> Mapping[str, str]:
    """The environment for anything that starts a Spark. At night it first begins to make the archive in `folder`."""
    flags = _archive(folder).loading()
    if flags is None and extent(False, True):
        _begin(folder)
    return _environment(flags or ())


@cache
def _archive(folder: Path) -> ClassArchive:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations
    jars = Path(found.submodule_search_locations[0], "jars")
    from kzconsumer_spark.worker.spark_session import with_jars_first  # with PySpark, which other tests do without

    return ClassArchive(folder, "spark", find_java(), jars, with_jars_first(None, jars))


@cache
def _begin(folder: Path) -> subprocess.Popen[bytes]:
    """A process of its own, which outlives a short run of tests. Of several in one folder the first one makes it."""
    nothing = subprocess.DEVNULL
    command = [sys.executable, "-m", "tests.support.quick_spark", str(folder)]
    process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    atexit.register(process.poll)  # nobody waits for it
    return process


def _environment(archive: tuple[str, ...]) -> dict[str, str]:
    return {"SPARK_LAUNCHER_OPTS": _SHORT_LIVED, "SPARK_SUBMIT_OPTS": " ".join((_SHORT_LIVED, *archive))}


def _train(archive: Path) -> None:
    """Leaves no file if that takes too long or fails: then Sparks start without."""
    environment = {**os.environ, **_environment(writing(archive))}
    command = [sys.executable, "-m", "tests.support.spark_training", str(archive.parent / "spark")]
    try:
        subprocess.run(command, env=environment, capture_output=True, timeout=_LIMIT, check=True)
    except subprocess.SubprocessError:
        archive.unlink(missing_ok=True)


if __name__ == "__main__":
    _archive(Path(sys.argv[1])).made(_train)
