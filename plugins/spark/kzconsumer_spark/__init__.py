"""Spark and kzconsumer: the sink of a daemon, and `GroupSource`, with which a user's own Spark reads as a member.

- The sink is two processes: `daemon`, the member's side, and `worker`, which holds Spark. What they say to each other:
  `worker_protocol`.
- What the worker does with a batch: `columns` (key and value become columns), `ranges` (which row belongs to which),
  `destinations` (tables that take each range once). In Spark's tasks, also those of the source: `executors`.
- `source`: a streaming query as a member of a group, and batch reads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kzconsumer_spark.source.group_source import GroupSource
    from kzconsumer_spark.source.prompt_commits import PromptCommits

_HOME = {"GroupSource": "source.group_source", "PromptCommits": "source.prompt_commits"}
__all__ = ["GroupSource", "PromptCommits"]


def __getattr__(name: str) -> object:
    """Imports PySpark only when the source is used: the daemon starts without it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ImportError as error:
        if "'_native'" not in str(error):
            raise
        raise ImportError(
            f"kzconsumer has a part in C, which cannot be imported from a zip, such as one of spark-submit --py-files:"
            f" install it in the Python of the driver and of every executor ({error})"
        ) from None
