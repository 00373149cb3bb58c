"""Parquet files written as one: the same rows in the same order, the same columns, types and compression.

Owns no state. `compaction` calls `kind_of` for what may be merged and `write_merged` for what is. Columns are compared
as the files have them, and rows are read back: what Arrow cannot write as it found it stays as it is.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.durable_files import sync_file

_ROW_GROUP_BYTES: Final = 128 << 20  # as Spark's; here of what is held in memory
_CODECS: Final[Mapping[str, Literal["none", "snappy", "gzip", "zstd", "brotli"]]] = {
    "UNCOMPRESSED": "none",
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "ZSTD": "zstd",
    "BROTLI": "brotli",
}


class NotMergeable(Exception):
    """The file would not be what those are that it is made of."""


def kind_of(footer: pq.FileMetaData) -> str:
    """Equal for files that differ in their rows alone: also by what Spark says there of its own types and calendar."""
    columns = [footer.schema.column(n) for n in range(footer.num_columns)]
    types = [
        f"{c.path} {c.physical_type} {c.logical_type} {c.max_definition_level} {c.max_repetition_level} {c.length}"
        for c in columns
    ]
    codecs = {footer.row_group(0).column(n).compression for n in range(footer.num_columns)}
    return "\n".join([*types, *sorted(codecs), *(f"{key!r} {value!r}" for key, value in sorted(_said(footer).items()))])


def write_merged(files: Sequence[Path], path: Path) -> None:
    """Make `path`, on disk when this returns, with the mode of the first file. Raises NotMergeable, OSError."""
    footer = _footer(files[0])
    columns = [footer.schema.column(n) for n in range(footer.num_columns)]
    compression = footer.row_group(0).column(0).compression
    if compression not in _CODECS:
        raise NotMergeable(f"Arrow does not write {compression} as it reads it")
    if any(column.physical_type == "INT96" for column in columns):
        raise NotMergeable("a column has timestamps as INT96, of which Arrow does not read all years")
    flat = {column.path: n for n, column in enumerate(columns) if "." not in column.path}
    statistics = [name for name, n in flat.items() if footer.row_group(0).column(n).statistics is not None]
    groups: list[list[Path]] = []
    try:
        with pq.ParquetWriter(
            path,
            _read(files[0]).schema,
            compression=_CODECS[compression],
            write_statistics=statistics,
            store_decimal_as_integer=any(
                column.logical_type.type == "DECIMAL" and column.physical_type.startswith("INT") for column in columns
            ),
            store_schema=False,
        ) as writer:
            for group, table in _groups(files):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                groups.append(group)
            writer.add_key_value_metadata({key.decode(): value.decode() for key, value in _said(footer).items()})
        _require_same(groups, kind_of(footer), path)
    except pa.ArrowException as error:
        raise NotMergeable(str(error).splitlines()[0]) from error
    shutil.copymode(files[0], path)
    sync_file(path)


def _groups(files: Sequence[Path]) -> Iterator[tuple[list[Path], pa.Table]]:
    """Whole files, as many as make a row group."""
    group: list[Path] = []
    tables: list[pa.Table] = []
    for file in files:
        table = _read(file)
        if group and sum(each.nbytes for each in tables) + table.nbytes > _ROW_GROUP_BYTES:
            yield group, pa.concat_tables(tables)
            group, tables = [], []
        group.append(file)
        tables.append(table)
    yield group, pa.concat_tables(tables)


def _require_same(groups: Sequence[Sequence[Path]], kind: str, path: Path) -> None:
    with pq.ParquetFile(path) as made:
        if kind_of(made.metadata) != kind:
            raise NotMergeable("Arrow would write a column in another way")
        for number, group in enumerate(groups):
            rows, at = made.read_row_group(number), 0
            for file in group:
                table = _read(file)
                if not rows.slice(at, table.num_rows).equals(table):
                    raise NotMergeable("a column has values that are not equal to themselves (NaN): nothing is proven")
                at += table.num_rows


def _read(file: Path) -> pa.Table:
    try:
        return pq.ParquetFile(file).read()
    except (OSError, pa.ArrowException) as error:
        raise NotMergeable(f"{file.name} cannot be read: {str(error).splitlines()[0]}") from error


def _footer(file: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(file)
    except (OSError, pa.ArrowException) as error:
        raise NotMergeable(f"{file.name} cannot be read: {str(error).splitlines()[0]}") from error


def _said(footer: pq.FileMetaData) -> Mapping[bytes, bytes]:
    return footer.metadata or {}
