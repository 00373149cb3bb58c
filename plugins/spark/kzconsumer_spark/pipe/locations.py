"""Directories and files as Spark names them."""

from __future__ import annotations

from pathlib import Path


def location(place: Path | str) -> str:
    """A URI as it is, a path with its scheme: without one it is in the default file system, on YARN mostly HDFS.

    Not `Path.as_uri`: Hadoop takes percent signs as they are.
    """
    return f"file://{place}" if str(place).startswith("/") else str(place)
