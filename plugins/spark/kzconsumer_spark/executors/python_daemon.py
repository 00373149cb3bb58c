"""Starts the Python process of an executor: `spark.python.daemon.module` of a cluster names this module.

Spark puts its pyspark.zip first in the search path, and what comes from a zip is compiled again by every process: that
takes three quarters of the processor time of a start, for which Spark waits 10 s. Here the PySpark that is installed
beside this package comes first, if it is the same version.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from zipimport import zipimporter

_VERSION = "pyspark/version.py"


def installed_first(path: Sequence[str]) -> list[str]:
    """The search path with Spark's archive last; as it is, if no PySpark of the same version is installed."""
    archives = [entry for entry in path if entry.endswith("pyspark.zip")]
    others = [entry for entry in path if entry not in archives]
    installed = next((file for entry in others if (file := Path(entry, _VERSION)).is_file()), None)
    try:
        if installed is not None and all(
            zipimporter(each).get_data(_VERSION) == installed.read_bytes() for each in archives
        ):
            return [*others, *archives]
    except (ImportError, OSError):  # Spark finds out what is wrong with the archive
        pass
    return list(path)


if __name__ == "__main__":
    sys.path[:] = installed_first(sys.path)
    runpy.run_module("pyspark.daemon", run_name="__main__")
