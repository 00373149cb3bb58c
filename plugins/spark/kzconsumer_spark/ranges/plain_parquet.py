"""Records as they came into Parquet, written by Arrow: the files that Spark would write, at a fifth of the cost.

Pure but for the files. `codec` says whether the settings leave it to us; the files destination calls `write_part` for
each range. Where columns are shaped, rows sorted into directories, or Spark told how to write, Spark writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer_spark.pipe.messages import SpooledRange, ToFiles

Codec: TypeAlias = Literal["snappy", "none", "gzip", "zstd"]

_COLUMNS: Final[Mapping[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
_WITH_STATISTICS: Final = ["topic", "partition", "offset", "timestamp", "timestampType"]
_ROW_GROUP_BYTES: Final = 128 << 20  # as Spark's
_CODECS: Final[Mapping[str, Codec]] = {
    "snappy": "snappy",
    "none": "none",
    "uncompressed": "none",
    "gzip": "gzip",
    "zstd": "zstd",
}
_COMPRESSION: Final = "compression"
_SPARKS_OWN: Final = ("spark.sql.parquet.", "spark.hadoop.parquet.")


def codec(to: ToFiles, conf: Mapping[str, str]) -> Codec | None:
    """What to compress with; None where the settings ask for something that only Spark does."""
    plain = to.format == "parquet" and not to.partition_by and not to.write_options.keys() - {_COMPRESSION}
    if not plain or any(key.startswith(_SPARKS_OWN) for key in conf):
        return None
    return _CODECS.get(to.write_options.get(_COMPRESSION, "snappy").lower())


def write_part(part: SpooledRange, path: Path, compression: Codec) -> None:
    """The range's records, which are in its spool file, as a file of Kafka's columns. Raises OSError."""
    assert part.file is not None
    spooled = pq.read_table(part.file, memory_map=True)
    columns = {
        name: spooled.column(name).cast(kind) if name in spooled.column_names else pa.nulls(spooled.num_rows, kind)
        for name, kind in _COLUMNS.items()
    }
    table = pa.table(columns)
    pq.write_table(
        table,
        path,
        row_group_size=max(1, table.num_rows * _ROW_GROUP_BYTES // max(table.nbytes, 1)),
        compression=compression,
        write_statistics=_WITH_STATISTICS,
        store_schema=False,
    )
