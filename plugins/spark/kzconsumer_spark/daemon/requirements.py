"""What a Spark needs of this machine, checked before one is started: each fault is one line.

Spark itself reports most of these late, or goes on without: a missing jar is a warning, another Python an error of the
first function that runs in it.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.own_files import own_directory
from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_spark.daemon.sink_options import WHERE, SparkOptions, local_path
from kzconsumer_spark.worker_protocol.spark_settings import is_cluster

_OLDEST_SPARK = (4, 0)
_OLDEST_JAVA = 17
_VERSION = re.compile(r"^__version__\b[^'\"]*['\"]((\d+)\.(\d+)[^'\"]*)", re.MULTILINE)
_JAVA_VERSION = re.compile(r'^JAVA_VERSION="((?:1\.)?(\d+)[^"]*)"', re.MULTILINE)
_PYTHON_SECONDS = 20.0


def require_pyspark() -> None:
    """Raises PluginError. PySpark is not imported: that takes a second."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise PluginError("kzconsumer-spark: pyspark is not installed: pip install kzconsumer-spark")
    version = _VERSION.search(Path(found.origin).with_name("version.py").read_text())
    if version is None or (int(version[2]), int(version[3])) < _OLDEST_SPARK:
        named = version[1] if version else "of unknown version"
        raise PluginError(
            f"kzconsumer-spark: pyspark {named} in {Path(found.origin).parent} is not supported,"
            " 4.0 or later is needed: pip install -U pyspark"
        )


def require_java(java: Path) -> None:
    """Raises PluginError. `java` is the program; a Java that does not tell its version is left to Spark."""
    try:
        version = _JAVA_VERSION.search((java.resolve().parents[1] / "release").read_text())
    except OSError:
        return
    if version is not None and int(version[2]) < _OLDEST_JAVA:
        raise PluginError(
            f"kzconsumer-spark: {java} is Java {version[1]}, Spark needs Java {_OLDEST_JAVA} or later:"
            " set JAVA_HOME to one"
        )


def require_conf(master: str, conf: Mapping[str, str]) -> None:
    """Raises ConfigError for what a master or `conf` needs and this machine does not have."""
    faults = []
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        faults.append(
            '[sink.options] master: "yarn" needs the variable HADOOP_CONF_DIR or YARN_CONF_DIR, the directory of the'
            " cluster's yarn-site.xml"
        )
    faults += [f"[sink.options] conf.spark.jars: {jar} does not exist" for jar in _missing(conf.get("spark.jars", ""))]
    python = conf.get("spark.pyspark.python")
    if python is not None and not is_cluster(master) and (fault := _python_fault(python)):
        faults.append(f"[sink.options] conf.spark.pyspark.python: {python} {fault}")
    if faults:
        raise ConfigError(faults)


def _missing(jars: str) -> Iterator[str]:
    """Paths and file: URIs without a file; Spark takes wildcards. What is elsewhere is left to Spark."""
    for jar in filter(None, map(str.strip, jars.split(","))):
        parts = urlsplit(jar)
        path = unquote(parts.path) if parts.scheme == "file" else jar
        if parts.scheme in ("", "file") and not glob.glob(path):
            yield jar


def _python_fault(python: str) -> str | None:
    """Of the program that runs Python functions in Spark's tasks, which must be of the minor version of this one."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PYTHON_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run: {error}"
    theirs = done.stdout.strip()
    return None if theirs == ours else f"is Python {theirs or 'of an unknown version'}, not {ours} like this one"


def make_scratch(options: SparkOptions) -> PrivateDirectory:
    """A directory on this machine that belongs to this process alone, empty. Removes those of dead processes.

    That of the event log is shared: it is made, and kept. Raises ConfigError if a directory cannot be used.
    """
    if options.event_log is not None and options.event_log.startswith("file:"):
        try:
            local_path(options.event_log).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError([f"{WHERE} event_log: {error}"]) from error
    try:
        parent = own_directory("spark", options.scratch or tempfile.gettempdir())
        sweep(parent)
        return PrivateDirectory(parent)
    except OSError as error:
        raise ConfigError([f"{WHERE} scratch: {error}"]) from error
