"""Parquet files written as one: the same rows in the same order, the same columns, types and compression.

Owns no state. `compaction` calls `look` for what may be merged and `write_merged` for what is. Types are compared as
the files have them, and rows are read back: what Arrow cannot write as it found it stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.sinks.durable_files import sync_file

_ROW_GROUP_BYTES: Final = 128 << 20  # as Spark's
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
    """Equal for files that differ in their rows alone."""
    columns = [footer.schema.column(n) for n in range(footer.num_columns)]
    types = [
        f"{c.path} {c.physical_type} {c.logical_type} {c.max_definition_level} {c.max_repetition_level} {c.length}"
        for c in columns
    ]
    codecs = {footer.row_group(0).column(n).compression for n in range(footer.num_columns)}
    return "\n".join([*types, *sorted(codecs)])


def write_merged(files: Sequence[Path], path: Path) -> None:
    """Make `path`, on disk when this returns. Raises NotMergeable, OSError."""
    footer = pq.read_metadata(files[0])
    columns = [footer.schema.column(n) for n in range(footer.num_columns)]
    flat = {column.path: n for n, column in enumerate(columns) if "." not in column.path}
    statistics = [name for name, n in flat.items() if footer.row_group(0).column(n).statistics is not None]
    if (compression := footer.row_group(0).column(0).compression) not in _CODECS:
        raise NotMergeable(f"Arrow does not write {compression} as it reads it")
    try:
        groups = list(_groups(files))
        with pq.ParquetWriter(
            path,
            pq.read_schema(files[0]),
            compression=_CODECS[compression],
            write_statistics=statistics,
            use_deprecated_int96_timestamps=any(column.physical_type == "INT96" for column in columns),
            store_decimal_as_integer=any(
                column.logical_type.type == "DECIMAL" and column.physical_type.startswith("INT") for column in columns
            ),
            store_schema=False,
        ) as writer:
            for group in groups:
                table = _rows(group)
                writer.write_table(table, row_group_size=max(1, table.num_rows))
        _require_same(groups, kind_of(footer), path)
    except pa.ArrowException as error:
        raise NotMergeable(str(error).splitlines()[0]) from error
    sync_file(path)


def _groups(files: Sequence[Path]) -> Iterator[list[Path]]:
    """Whole files, as many as make a row group: what is held in memory at a time."""
    group: list[Path] = []
    size = 0
    for file in files:
        footer = pq.read_metadata(file)
        plain = sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
        if group and size + plain > _ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(file)
        size += plain
    yield group


def _rows(files: Sequence[Path]) -> pa.Table:
    return pa.concat_tables(pq.ParquetFile(file).read() for file in files)


def _require_same(groups: Sequence[Sequence[Path]], kind: str, path: Path) -> None:
    with pq.ParquetFile(path) as made:
        if kind_of(made.metadata) != kind:
            raise NotMergeable("Arrow would write a column in another way")
        for number, group in enumerate(groups):
            if not made.read_row_group(number).equals(_rows(group)):
                raise NotMergeable(
                    "a column has values that are not equal to themselves (NaN), so nothing can be proven"
                )
