"""Records as they are into Parquet, written by Arrow: the files that Spark would write, at a fifth of the cost.

Only where columns are not shaped, rows not sorted into directories, and no option is set that only Spark's writer has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from kzconsumer_files.parquet.records import Codec, write_records
from kzconsumer_spark.pipe.messages import SpooledRange, ToFiles

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
    """The compression; None where the settings ask for something that only Spark does."""
    plain = to.format == "parquet" and not to.partition_by and not to.write_options.keys() - {_COMPRESSION}
    if not plain or any(key.startswith(_SPARKS_OWN) for key in conf):
        return None
    return _CODECS.get(to.write_options.get(_COMPRESSION, "snappy").lower())


def write_part(part: SpooledRange, path: Path, compression: Codec) -> None:
    """Write the records of a range's spool file to `path`. Raises OSError."""
    assert part.file is not None
    write_records(pq.read_table(part.file, memory_map=True), path, compression)
