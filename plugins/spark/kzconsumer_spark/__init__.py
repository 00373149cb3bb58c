"""Spark and kzconsumer: the sink of a daemon (`daemon`, and `worker`, the process that holds Spark), and `GroupSource`,
with which a Spark of the user's own reads as a member of a group.
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
