"""Parquet files that tasks write and put into the destination's store, where they share no directory with the driver.

Nothing that a task puts is published by that. A task may be run twice, on two machines at a time, or go on after its
executor was given up, so each of its attempts has names of its own. The driver gets the names that one attempt of each
task reports, and publishes these; the others are in nobody's table or ledger.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, types
from pyspark.sql import functions as sql

from kzconsumer.errors import KzConsumerError
from kzconsumer_files.layout import Misfit, type_text
from kzconsumer_files.object_store import Put
from kzconsumer_files.range_names import unique_file
from kzconsumer_spark.ranges.batch import RANGE_COLUMNS, tag_of
from kzconsumer_spark.worker_protocol.messages import BatchRange
from kzconsumer_spark.worker_protocol.spark_settings import CODECS, PARQUET_CODEC, Codec, codec_of

# What the columns begin with that have the parts of a row's directory.
_NAMED: Final = "_kz_named_"
#: What `TaskWriter` returns of each file: its directory, the name it was put under, its size, its footer.
COLUMNS: Final = "directory string, name string, size bigint, footer binary"
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "directory": pa.string(),
    "name": pa.string(),
    "size": pa.int64(),
    "footer": pa.binary(),
}
# Of which Arrow and Spark write the same to Parquet.
_PLAIN: Final = (
    *(types.StringType, types.BinaryType, types.BooleanType, types.ByteType, types.ShortType, types.IntegerType),
    *(types.LongType, types.FloatType, types.DoubleType, types.DecimalType, types.DateType, types.TimestampType),
    types.TimestampNTZType,
)
# Bytes in memory: of one row group, and of the rows of all files of a task that are not in their files yet.
ROW_GROUP: Final = 32 << 20
PENDING: Final = 64 << 20
OPEN_FILES: Final = 64  # files of a task, as `spark.sql.maxConcurrentOutputFileWriters`
# As Spark names the directory of a null, and what it writes as three characters: ExternalCatalogUtils of Spark 4.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile(r"""[\x01-\x1F"#%'*/:=?\\\x7F{\[\]^]""")

Values: TypeAlias = tuple[str | None, ...]


class TaskFiles:
    """Has tasks write Parquet files, and put them. See `kzconsumer_spark.ranges.staged_files.Elsewhere`."""

    def __init__(self, put: Put) -> None:
        self._put = put

    def write(
        self,
        frame: DataFrame,
        by: Sequence[str],
        ranges: Sequence[BatchRange],
        output: Path,
        options: Mapping[str, str],
    ) -> Mapping[Path, str]:
        names = (*RANGE_COLUMNS, *by)
        columns = [each for each in frame.schema if each.name not in names]
        require_plain(columns)
        directories = [sql.col(f"`{name}`").cast("string").alias(f"{_NAMED}{n}") for n, name in enumerate(names)]
        codec = frame.sparkSession.conf.get(PARQUET_CODEC)
        assert codec is not None
        writer = TaskWriter(
            names=names,
            ranges={(tag_of(part.topic), str(part.partition)): part for part in ranges},
            attempt=uuid.uuid4().hex,
            codec=CODECS[codec_of(options, {PARQUET_CODEC: codec})],
            put=self._put,
        )
        rows = frame.select(*(sql.col(f"`{each.name}`") for each in columns), *directories)
        found = {}
        # One attempt of each task is heard, whichever of them have put files.
        for place, name, size, footer in rows.mapInArrow(writer.files, COLUMNS).collect():
            file = output / place / f"part-{name}"
            stand_in(file, size, footer)
            found[file] = name
        return found


def require_plain(columns: Sequence[types.StructField]) -> None:
    """Raises Misfit for columns that tasks cannot write as Spark does, or if there are none."""
    if not columns:
        raise Misfit("partition_by names all columns: files would have none")
    for each in columns:
        if not _is_plain(each.dataType):
            kind = type_text(each.dataType.jsonValue())
            raise Misfit(f'column "{each.name}" is {kind}, which tasks of a cluster cannot write into a store')


def _is_plain(kind: types.DataType) -> bool:
    match kind:
        case types.ArrayType():
            return _is_plain(kind.elementType)
        case types.MapType():
            return _is_plain(kind.keyType) and _is_plain(kind.valueType)
        case types.StructType():
            return all(_is_plain(each.dataType) for each in kind)
    return isinstance(kind, _PLAIN)


def nowhere(file: Path, name: str) -> None:
    """A `Put` for a trial: nothing stays."""


def directory(names: Iterable[str], values: Iterable[str | None]) -> str:
    """That in which Spark puts rows with these values of these columns."""
    return "/".join(f"{_escaped(name)}={_escaped(value or _NULL)}" for name, value in zip(names, values, strict=True))


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


class TaskWriter(NamedTuple):
    """Writes and puts the rows of one attempt of a task. Pickled for it.

    The last columns, as many as `names`, have what directories are named by, as text; those of the range come first.
    They are not written. `ranges`: by these two values. `attempt` is unique for each job.
    """

    names: tuple[str, ...]
    ranges: Mapping[Values, BatchRange]
    attempt: str
    codec: Codec
    put: Put

    def files(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: rows of `COLUMNS`. Raises OSError if a file cannot be put."""
        context = TaskContext.get()
        number = 0 if context is None else context.taskAttemptId()  # no other attempt of any task of Spark's has it
        # Spark removes its own directories, also those of an executor that was killed.
        places = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        with TemporaryDirectory(prefix="kzconsumer-", dir=places[0] or None) as scratch:
            files = OpenFiles(self, Path(scratch), number)
            for batch in batches:
                files.add(batch)
            yield files.put_all()


class OpenFiles:
    """The files of one task, of which each has the rows of one partition of the table."""

    def __init__(self, writer: TaskWriter, scratch: Path, task: int) -> None:
        self._writer = writer
        self._scratch = scratch
        self._attempt = f"{writer.attempt}-{task}"
        self._pending: dict[Values, list[pa.RecordBatch]] = {}
        self._bytes: dict[Values, int] = {}  # of what is pending
        self._open: dict[Values, tuple[Path, pq.ParquetWriter]] = {}
        self._count = 0
        self._done: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for values, rows in _by_directory(batch, len(self._writer.names)):
            self._pending.setdefault(values, []).append(rows)
            self._bytes[values] = self._bytes.get(values, 0) + rows.nbytes
            if self._bytes[values] >= ROW_GROUP:
                self._flush(values)
        while sum(self._bytes.values()) > PENDING:
            self._flush(max(self._bytes, key=self._bytes.__getitem__))

    def put_all(self) -> pa.RecordBatch:
        for values in [*self._open, *(each for each in self._pending if each not in self._open)]:
            self._finish(values)
        return pa.RecordBatch.from_pylist(self._done, pa.schema(_TYPES))

    def _flush(self, values: Values) -> None:
        rows = pa.Table.from_batches(self._pending.pop(values))
        del self._bytes[values]
        if values not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._finish(next(iter(self._open)))
            file = self._scratch / str(self._count)
            self._count += 1
            # As Spark's: what readers take for the type of a column must not depend on who wrote a file.
            made = pq.ParquetWriter(
                file, rows.schema, compression=self._writer.codec, store_schema=False, store_decimal_as_integer=True
            )
            self._open[values] = file, made
        self._open[values][1].write_table(rows, row_group_size=max(rows.num_rows, 1))

    def _finish(self, values: Values) -> None:
        """Put the file; further rows of its directory would go to another one."""
        if values in self._pending:
            self._flush(values)
        file, made = self._open.pop(values)
        made.close()
        part = self._writer.ranges[values[:2]]
        name = unique_file(part, self._attempt, len(self._done))
        try:
            self._writer.put(file, name)
        except (OSError, KzConsumerError) as error:
            raise OSError(
                f"the executor on {socket.gethostname()} cannot put files: {error}. Each executor needs"
                " kzconsumer-files[object-store], a route to the store and credentials of its own"
            ) from None
        place = directory(self._writer.names, values)
        self._done.append({"directory": place, "name": name, "size": file.stat().st_size, "footer": _footer(file)})
        file.unlink()


def _by_directory(batch: pa.RecordBatch, names: int) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The rows of each directory, without the columns that name it."""
    if not batch.num_rows:
        return
    data = batch.select(batch.schema.names[: batch.num_columns - names])
    keys = [each.dictionary_encode("encode") for each in batch.columns[batch.num_columns - names :]]
    code = keys[0].indices.cast(pa.int64())
    for key in keys[1:]:
        code = pc.add(pc.multiply(code, len(key.dictionary)), key.indices.cast(pa.int64()))
    if len(pc.unique(code)) == 1:
        yield _values(keys, 0), data
        return
    order = pc.sort_indices(code)
    data, first = data.take(order), 0
    for each in pc.value_counts(code.take(order)):
        rows = each["counts"].as_py()
        yield _values(keys, order[first].as_py()), data.slice(first, rows)
        first += rows


def _values(keys: Iterable[Any], row: int) -> Values:
    return tuple(key.dictionary[key.indices[row].as_py()].as_py() for key in keys)


def _footer(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(-8, os.SEEK_END)
        length = int.from_bytes(opened.read(4), "little") + 8
        opened.seek(-length, os.SEEK_END)
        return opened.read()


def stand_in(file: Path, size: int, footer: bytes) -> None:
    """Make a file of that size with that footer, and a hole where the rows are: its metadata and its columns can be
    read as from the whole one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as made:
        made.truncate(size - len(footer))
        made.seek(0, os.SEEK_END)
        made.write(footer)
