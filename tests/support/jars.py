"""The jars that tests need besides the sandbox's: what they fetch, and PySpark's own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from kzconsumer_sandbox.servers.jars import read_jar_sets, resolve_jars

SETS = read_jar_sets(Path(__file__).with_suffix(".toml"))


def fetched(name: str) -> Path:
    """The directory of that set. A name with the version of something installed changes with `make lock`."""
    if name not in SETS:
        raise LookupError(f"no set {name} in {SETS.keys()}: name it in tests/support/jars.toml, then make lock-jars")
    return resolve_jars(SETS[name])


def spark_jars() -> Path:
    """The directory of PySpark's jars; PySpark is not imported."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("jars")


def hadoop_version() -> str:
    """Of the Hadoop that PySpark has."""
    (jar,) = spark_jars().glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")
