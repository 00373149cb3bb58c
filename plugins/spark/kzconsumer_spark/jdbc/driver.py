"""PostgreSQL's driver for Java, which Spark inserts with: looked for before a Spark is started."""

from __future__ import annotations

import glob
import importlib.util
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from kzconsumer.errors import ConfigError

DRIVER: Final = "org.postgresql.Driver"
MISSING: Final = (
    f'[sink.options] conf: Spark has no {DRIVER}: name PostgreSQL\'s driver by conf."spark.jars" (the path of its jar)'
    ' or conf."spark.jars.packages" ("org.postgresql:postgresql:42.7.4")'
)
_CLASS: Final = DRIVER.replace(".", "/") + ".class"
#: Of the environment: a Spark with any of them may have further settings and jars.
_ELSEWHERE: Final = frozenset({"SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "PYSPARK_SUBMIT_ARGS"})


def require_driver(conf: Mapping[str, str]) -> None:
    """Raises ConfigError if no jar that Spark will have is the driver. What cannot be known here is left to Spark."""
    jars = [jar.strip() for jar in conf.get("spark.jars", "").split(",") if jar.strip()]
    local = [path for jar in jars if (path := _local(jar)) is not None]
    class_path = filter(None, conf.get("spark.driver.extraClassPath", "").split(os.pathsep))
    if "spark.jars.packages" in conf or len(local) < len(jars) or _ELSEWHERE & os.environ.keys():
        return
    if not any(map(_is_driver, _files([*local, *class_path]))) and not any(map(_is_driver, _of_pyspark())):
        raise ConfigError([MISSING])


def _local(jar: str) -> str | None:
    parts = urlsplit(jar)
    if parts.scheme in ("file", "local"):
        return unquote(parts.path)
    return jar if not parts.scheme else None


def _files(paths: Iterable[str]) -> Iterator[Path]:
    """Of paths with wildcards; a directory in a class path has classes, or `*` behind it."""
    for path in paths:
        yield from map(Path, glob.glob(path))


def _of_pyspark() -> Iterator[Path]:
    found = importlib.util.find_spec("pyspark")
    if found is not None and found.origin is not None:
        yield from Path(found.origin).with_name("jars").glob("*.jar")


def _is_driver(path: Path) -> bool:
    if path.is_dir():
        return (path / _CLASS).exists()
    try:
        with zipfile.ZipFile(path) as jar:
            return _CLASS in jar.NameToInfo
    except (OSError, zipfile.BadZipFile):
        return False
