"""Staging ranges as files, each of which is known to belong to its range: for targets of files, Delta and Iceberg.

Parquet of the records as they are is written by a plain job, and each file is recognised by its footer. In all other
cases Spark sorts rows into a directory for each range, in one job: about 1.7 times the processor time of a plain write
at 50,000 records a range; one job for each range takes twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructType

from kzconsumer_files.publication import StagedRange
from kzconsumer_files.range_names import data_file
from kzconsumer_spark.ranges.batch import (
    RANGE_COLUMNS,
    RANGE_PARTITION,
    RANGE_TOPIC,
    SCHEMA,
    AsTheyCame,
    RowShaping,
    RowsLost,
    count_rows,
    counted,
    tag_of,
    tagged,
)
from kzconsumer_spark.ranges.unstorable_rows import Limits, Screen
from kzconsumer_spark.worker_protocol.messages import BatchRange, ToFiles
from kzconsumer_spark.worker_protocol.spark_settings import location

# Which range a Parquet file written by Spark holds, according to its footer.
#
# Task numbers and file names are not trusted: a file is published as a range only if its topic, partition, offsets
# and row count are those of the whole range.


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


def parts_by_range(parts: Iterable[Part], ranges: Sequence[BatchRange]) -> dict[BatchRange, list[Part]]:
    """The files of each range that has any, in offset order. Raises PartMismatch for one that is of no range."""
    by_partition = {(part.topic, part.partition): part for part in ranges}
    found: dict[BatchRange, list[Part]] = {}
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


# Options of Spark's writers of text, without which they would change values. `write_options` override them.

#: Spark would write whole milliseconds; and in a zone of long ago, whose offset has seconds, whole minutes of that.
TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
    "timeZone": "UTC",
}
#: By format. CSV would lose the blanks around a text.
OPTIONS: Final[dict[str, dict[str, str]]] = {
    "json": TIMES,
    "csv": TIMES | {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"},
}


#: How to learn from a file how many rows it has. There is no such way for text: Spark counts what it writes.
_ROWS_OF: Final[dict[str, Callable[[Path], int]]] = {
    "parquet": lambda path: pq.read_metadata(path).num_rows,
    "orc": lambda path: orc.ORCFile(path).nrows,
}
# What a copy of a column begins with, by which files are partitioned.
_PARTITION: Final = "_kz_by_"
# What follows the number of the file in the names that Spark gives: "part-00000-<uuid>.c000.json.gz"
_EXTENSION: Final = re.compile(r"[.-]c\d{3,}((?:\.\w+)+)")


class Elsewhere(Protocol):
    """Where files are made that the driver cannot see."""

    def write(
        self,
        frame: DataFrame,
        by: Sequence[str],
        ranges: Sequence[BatchRange],
        output: Path,
        options: Mapping[str, str],
    ) -> Mapping[Path, str]:
        """Write tagged rows as Parquet files, and put them into the destination's store.

        Returns their names in it, by files that stand for them: below `output`, in the directories that Spark would
        make for `RANGE_COLUMNS` and `by`, and with nothing but their footers. `options` are those of Spark's writer.
        """
        ...


class StagedFiles(NamedTuple):
    """Files by range, and the columns that are in them or are their directories."""

    ranges: list[StagedRange]
    columns: StructType


class RangeFiles:
    """Writes ranges as `to` says, but for its path."""

    def __init__(
        self, session: SparkSession, to: ToFiles, shaping: RowShaping | None = None, *, keep_columns: bool = False
    ) -> None:
        """With `keep_columns` files also hold the columns by which they are partitioned."""
        self._to = to
        self._keep_columns = keep_columns
        self.shaping = shaping or AsTheyCame()
        self._kafka = session.createDataFrame([], SCHEMA).schema

    def stage(
        self, frame: DataFrame, ranges: Sequence[BatchRange], output: Path, elsewhere: Elsewhere | None = None
    ) -> StagedFiles:
        """Write `frame`, the records of `ranges`, into `output`, which is made. All ranges have records.

        With `elsewhere` it writes them, and in `output` are files that stand for them.
        """
        if (
            elsewhere is not None
            or self._to.format != "parquet"
            or self._to.partition_by
            or self.shaping.leaves_out_rows
        ):
            return self._stage_by_range(frame, ranges, output, elsewhere)
        return StagedFiles(self._stage_plain(frame, ranges, output), self._kafka)

    def _stage_plain(self, frame: DataFrame, ranges: Sequence[BatchRange], output: Path) -> list[StagedRange]:
        """A range has a file of each task that fetched a part of it.

        The caller compares their rows with what tasks have read (`require_all`): Spark's own count would cost each row.
        """
        parts = parts_by_range(self._written(frame, output), ranges)
        staged = []
        for whole in ranges:
            found = parts.get(whole, [])
            files = [(part.path, data_file(whole, number=number)) for number, part in enumerate(found)]
            rows = sum(part.rows for part in found)
            staged.append(StagedRange(msgspec.structs.replace(whole, records=rows), rows, 0, files))
        return staged

    def _written(self, frame: DataFrame, output: Path) -> list[Part]:
        frame.write.options(**self._to.write_options).parquet(location(output))
        # A task without rows may leave a file, too.
        return [read_part(file) for file in sorted(output.glob("*.parquet")) if has_rows(file)]

    def _stage_by_range(
        self, records: DataFrame, ranges: Sequence[BatchRange], output: Path, elsewhere: Elsewhere | None
    ) -> StagedFiles:
        shaped, quarantined = tagged(records, ranges, self.shaping)
        screen = Screen(shaped, ranges, self._limits())
        frame = screen.frame
        columns = StructType([each for each in frame.schema if each.name not in RANGE_COLUMNS])
        count = _ROWS_OF.get(self._to.format)
        frame, counts = count_rows(frame, ranges)
        by = self._to.partition_by
        if self._keep_columns:
            texts = {field.name for field in columns if isinstance(field.dataType, StringType)}
            # With a character before it, as Spark writes empty text and null into one file.
            copies = {
                f"{_PARTITION}{name}": sql.concat(sql.lit("="), sql.col(name)) if name in texts else sql.col(name)
                for name in by
            }
            frame, by = frame.withColumns(copies), tuple(copies)
        options = {**OPTIONS.get(self._to.format, {}), **self._to.write_options}
        stored: Mapping[Path, str] = {}
        with screen.explaining():
            if elsewhere is not None:
                stored = elsewhere.write(frame, by, ranges, output, options)
            else:
                writer = frame.write.format(self._to.format).options(**options)
                writer.partitionBy(*RANGE_COLUMNS, *by).save(location(output))
        found = {part: _files_of(part, output, self._to.format) for part in ranges}
        if count is None:
            rows = dict(zip(ranges, counts(), strict=True))
        else:
            rows = {part: sum(count(file) for file, _ in files) for part, files in found.items()}
            if list(rows.values()) != counts():
                raise RowsLost(f"Spark wrote {counts()} rows, by range; in the files here are {list(rows.values())}")
        staged = [
            StagedRange(
                counted(part, rows[part], self.shaping),
                rows[part],
                quarantined.get(part.range, 0),
                files,
                [stored[file] for file, _ in files] if elsewhere is not None else (),
            )
            for part, files in found.items()
        ]
        return StagedFiles(staged, columns)

    def _limits(self) -> Limits:
        before, after = (_PARTITION, "=%3D") if self._keep_columns else ("", "=")
        directories = {name: f"{before}{name}{after}" for name in self._to.partition_by}
        return Limits(directories=directories, empty=self._keep_columns, orc=self._to.format == "orc")


def _files_of(part: BatchRange, output: Path, kind: str) -> list[tuple[Path, str]]:
    """The files that Spark wrote of a range, each with its final name, below the user's partition directories."""
    top = output / f"{RANGE_TOPIC}={tag_of(part.topic)}" / f"{RANGE_PARTITION}={part.partition}"
    numbers: dict[Path, int] = {}
    found = []
    for file in sorted(each for each in top.rglob("part-*") if each.is_file()):
        directory = file.parent.relative_to(top)
        number = numbers[directory] = numbers.get(directory, -1) + 1
        # Parquet and ORC say inside how they are compressed; of text only the name does.
        extension = kind if kind in _ROWS_OF else _extension(file.name)
        found.append((file, str(directory / data_file(part, extension, number))))
    return found


def _extension(name: str) -> str:
    match = _EXTENSION.search(name)
    if match is None:
        raise ValueError(f"Spark named a file {name}: it has no known extension")
    return match[1].removeprefix(".")
