"""Which range a Parquet file written by Spark holds, according to its footer.

Task numbers and file names are not trusted: a file is published as a range only if its topic, partition, offsets and
row count are those of the whole range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from kzconsumer.model import OffsetRange
from kzconsumer_spark.pipe.messages import SpooledRange


class PartMismatch(Exception):
    """Spark's output is not one whole file for each range."""


class Part(NamedTuple):
    """What one file holds: smallest and largest value of the identifying columns, and its rows."""

    path: Path
    topics: tuple[str, str]
    partitions: tuple[int, int]
    offsets: tuple[int, int]
    rows: int


def has_rows(path: Path) -> bool:
    return pq.read_metadata(path).num_rows > 0


def read_part(path: Path) -> Part:
    """Raises PartMismatch when the footer lacks statistics of the identifying columns, as an empty file does."""
    footer = pq.read_metadata(path)
    columns = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
    bounds: dict[str, tuple[Any, Any]] = {}
    for name in ("topic", "partition", "offset"):
        if name not in columns:
            raise PartMismatch(f"{path.name} has no column {name}")
        found = [footer.row_group(group).column(columns[name]).statistics for group in range(footer.num_row_groups)]
        known = [each for each in found if each is not None and each.has_min_max and not each.null_count]
        if not known or len(known) != len(found):
            raise PartMismatch(f"{path.name} has no statistics of {name}")
        lowest: list[Any] = [each.min for each in known]
        highest: list[Any] = [each.max for each in known]
        bounds[name] = (min(lowest), max(highest))
    return Part(path, bounds["topic"], bounds["partition"], bounds["offset"], footer.num_rows)


def match_parts(parts: Iterable[Part], ranges: Sequence[SpooledRange]) -> list[tuple[SpooledRange, Path]]:
    """The file of each range, in the order of `ranges`, every part used. Raises PartMismatch for anything else."""
    files: dict[OffsetRange, Path] = {}
    for whole, (part, *others) in parts_by_range(parts, ranges).items():
        if others:
            raise PartMismatch(f"{whole.range} is in two files")
        if part.rows != whole.records:
            raise PartMismatch(f"{_shown(part)} of {whole.range}, which has {whole.records}")
        files[whole.range] = part.path
    missing = [part.range for part in ranges if part.range not in files]
    if missing:
        raise PartMismatch(f"Spark wrote no file for {', '.join(map(str, missing))}")
    return [(part, files[part.range]) for part in ranges]


def parts_by_range(parts: Iterable[Part], ranges: Sequence[SpooledRange]) -> dict[SpooledRange, list[Part]]:
    """The files of each range that has any, in offset order. Raises PartMismatch for one that is of no range."""
    by_partition = {(part.topic, part.partition): part for part in ranges}
    found: dict[SpooledRange, list[Part]] = {}
    for part in sorted(parts, key=lambda part: part.offsets):
        whole = by_partition.get((part.topics[0], part.partitions[0]))
        one = part.topics[0] == part.topics[1] and part.partitions[0] == part.partitions[1]
        if whole is None or not one:
            raise PartMismatch(f"{part.path.name} holds {part.topics[0]}-{part.partitions[0]}, which was not asked for")
        if not whole.first <= part.offsets[0] <= part.offsets[1] < whole.until:
            raise PartMismatch(f"{_shown(part)} of {whole.range}")
        found.setdefault(whole, []).append(part)
    return found


def _shown(part: Part) -> str:
    return f"{part.path.name} holds {part.rows} rows {part.offsets[0]}..{part.offsets[1]}"
