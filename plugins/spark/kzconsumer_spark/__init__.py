"""Spark and kzconsumer: the sink of a daemon (`daemon`, and `worker`, the process that holds Spark), and `GroupSource`,
with which a Spark of the user's own reads as a member of a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kzconsumer_spark.source.group_source import GroupSource

__all__ = ["GroupSource"]


def __getattr__(name: str) -> object:
    """Imports PySpark only when the source is used: the daemon starts without it."""
    if name != "GroupSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kzconsumer_spark.source.group_source import GroupSource

    return GroupSource
