"""Readings of the exporter in tests."""

from __future__ import annotations

from typing import Any

from kzconsumer_tools.exporter.seen_groups import Histories, SeenGroup


def looked(histories: Histories, *reading: Any, **more: Any) -> dict[str, SeenGroup]:
    """One reading, given to `Histories.look`: each group by its name."""
    return {each.group: each for each in histories.look(*reading, **more)}
