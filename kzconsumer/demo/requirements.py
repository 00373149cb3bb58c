"""What the demo needs beyond the core, looked for before anything starts.

Owns no state. `cli.demo` calls it first, so that a bare installation gets one line that says what to install.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection

from kzconsumer.errors import KzConsumerError
from kzconsumer.plugins import SINKS, list_plugins

_SINK = "spark"
_MODULES = ("confluent_kafka", "pyspark")


def require() -> None:
    """Raises KzConsumerError, naming what to install."""
    modules = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    fault = missing(modules, [plugin.name for plugin in list_plugins(SINKS)])
    if fault:
        raise KzConsumerError(fault)


def missing(modules: Collection[str], sinks: Collection[str]) -> str:
    """The line about modules that are not there and a Spark sink that is not among `sinks`; empty when all is well."""
    lacking = [name.replace("_", "-") for name in modules]
    packages = list(lacking)
    if _SINK not in sinks:
        lacking.append("the Spark sink")
        packages.append("./plugins/files ./plugins/spark (in kzconsumer's source folder)")
    if not lacking:
        return ""
    return f"the demo also needs {', '.join(lacking)}: pip install {' '.join(packages)}"
