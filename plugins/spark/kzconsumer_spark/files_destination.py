"""The files destination in the worker: Spark writes ranges into a directory of its own, the target publishes them.

Owns this worker's staging directory inside the target. Parquet of the records as they are is written by Arrow here;
where Spark is told how to write it, or executors are to do it, by a plain write of Spark's, each file recognised by its
footer. For whatever else may be in the files, or be their layout, Spark sorts rows into directories by range, in one
job: about 1.7 times the processor time of its plain write at 50,000 records a range, where a job for each range takes
twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Final

import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from kzconsumer_spark.cluster import is_cluster
from kzconsumer_spark.destinations import Written
from kzconsumer_spark.identity import RANGE_COLUMNS, RANGE_PARTITION, RANGE_TOPIC, data_file
from kzconsumer_spark.lease import Lease
from kzconsumer_spark.messages import SpooledRange, ToFiles
from kzconsumer_spark.part_files import match_parts, read_part
from kzconsumer_spark.plain_parquet import Codec, write_part
from kzconsumer_spark.private_directory import PrivateDirectory
from kzconsumer_spark.publication import StagedRange
from kzconsumer_spark.range_tags import AsTheyCame, RowsLost, Shaping, count_rows, require_all, tagged
from kzconsumer_spark.spool_reader import read_spool
from kzconsumer_spark.target import Target

#: How to learn from a file how many rows it has. There is no such way for text: Spark counts what it writes.
_ROWS_OF: Final[dict[str, Callable[[Path], int]]] = {
    "parquet": lambda path: pq.read_metadata(path).num_rows,
    "orc": lambda path: orc.ORCFile(path).nrows,
}
# What follows the number of the file in the names that Spark gives: "part-00000-<uuid>.c000.json.gz"
_EXTENSION: Final = re.compile(r"[.-]c\d{3,}((?:\.\w+)+)")


class FilesDestination:
    """Each range as files named after it under the target, first writer wins, ledger entry last."""

    def __init__(
        self,
        session: SparkSession,
        to: ToFiles,
        lease: Lease,
        shaping: Shaping | None = None,
        codec: Codec | None = None,
    ) -> None:
        """`codec`: with which Arrow may write what is not shaped; None leaves it to Spark."""
        self._session = session
        self._codec = codec
        self._to = to
        self._lease = lease
        self._shaping = shaping or AsTheyCame()
        self._target = Target(Path(to.path))
        self._target.sweep()
        self._staging = PrivateDirectory(self._target.attempts)
        self._attempts = 0
        # On a cluster what executors have written may not be seen here (yet): Spark's own count tells.
        self._elsewhere = is_cluster(session.sparkContext.master)

    def __repr__(self) -> str:
        return f"FilesDestination({self._to.format} in {self._target.path})"

    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written:
        for failed in sorted(self._staging.path.iterdir()):
            self._target.discard(failed)
        missing = self._target.missing(ranges)
        for part in set(ranges).difference(missing):
            self._target.require_published(part)
        if not missing:
            return Written(0, 0, len(ranges))
        self._attempts += 1
        attempt = self._staging.path / str(self._attempts)
        attempt.mkdir()
        with_rows = [part for part in missing if part.records]
        staged = self._stage(with_rows, attempt / "staged") if with_rows else []
        staged += [StagedRange(part, 0, 0, ()) for part in missing if not part.records]
        published = self._target.publish(staged, attempt, self._lease.require)
        self._target.discard(attempt)
        return Written(sum(each.rows for each in staged), published, len(ranges) - published)

    def close(self) -> None:
        self._target.discard(self._staging.path)
        self._staging.remove()

    def _stage(self, ranges: Sequence[SpooledRange], output: Path) -> list[StagedRange]:
        if self._to.format != "parquet" or self._to.partition_by or self._shaping.leaves_out_rows:
            return self._stage_by_range(ranges, output)
        if self._codec is None or self._elsewhere:
            return self._stage_plain(ranges, output)
        return self._stage_here(ranges, output, self._codec)

    @staticmethod
    def _stage_here(ranges: Sequence[SpooledRange], output: Path, codec: Codec) -> list[StagedRange]:
        output.mkdir()
        files = [output / data_file(part) for part in ranges]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(write_part, ranges, files, repeat(codec)))
        written = match_parts(map(read_part, files), ranges)
        return [StagedRange(part, part.records, 0, [(file, data_file(part))]) for part, file in written]

    def _stage_plain(self, ranges: Sequence[SpooledRange], output: Path) -> list[StagedRange]:
        # The session's settings make every spool file a task of its own, so this is one file for each range.
        read_spool(self._session, ranges).write.options(**self._to.write_options).parquet(str(output))
        files = match_parts(map(read_part, sorted(output.glob("*.parquet"))), ranges)
        return [StagedRange(part, part.records, 0, [(file, data_file(part))]) for part, file in files]

    def _stage_by_range(self, ranges: Sequence[SpooledRange], output: Path) -> list[StagedRange]:
        frame, quarantined = tagged(self._session, ranges, self._shaping)
        count = _ROWS_OF.get(self._to.format)
        if count is None or self._elsewhere:
            frame, counted = count_rows(frame, ranges)
        writer = frame.write.format(self._to.format).options(**self._to.write_options)
        writer.partitionBy(*RANGE_COLUMNS, *self._to.partition_by).save(str(output))
        found = {part: _files_of(part, output, self._to.format) for part in ranges}
        if count is None:
            rows = dict(zip(ranges, counted(), strict=True))
        else:
            rows = {part: sum(count(file) for file, _ in files) for part, files in found.items()}
            if self._elsewhere and list(rows.values()) != counted():
                raise RowsLost(f"Spark wrote {counted()} rows, by range; in the files here are {list(rows.values())}")
        require_all(rows, self._shaping)
        return [StagedRange(part, rows[part], quarantined.get(part.range, 0), files) for part, files in found.items()]


def _files_of(part: SpooledRange, output: Path, kind: str) -> list[tuple[Path, str]]:
    """The files that Spark wrote of a range, each with its final name, below the user's partition directories."""
    top = output / f"{RANGE_TOPIC}={part.topic}" / f"{RANGE_PARTITION}={part.partition}"
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
        raise ValueError(f"Spark named a file {name}: no extension can be told from it")
    return match[1].removeprefix(".")
