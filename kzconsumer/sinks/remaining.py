"""What is left to be done of ranges, once some are.

Pure. `sinks/replay` asks it when it starts, for the first time or again.
"""

from __future__ import annotations

from collections.abc import Iterable

from kzconsumer.model import OffsetRange


def remaining(wanted: Iterable[OffsetRange], there: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets of `wanted` that are in no range of `there`, in order, as few ranges as there can be."""
    by_partition: dict[tuple[str, int], list[OffsetRange]] = {}
    for each in sorted(there):
        by_partition.setdefault(each[:2], []).append(each)
    left = []
    for whole in sorted(wanted):
        at = whole.first
        for each in by_partition.get(whole[:2], []):
            if each.first >= whole.until:
                break
            if at < each.first:
                left.append(whole._replace(first=at, until=each.first))
            at = max(at, each.until)
        if at < whole.until:
            left.append(whole._replace(first=at))
    return left
