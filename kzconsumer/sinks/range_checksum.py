"""What tells whether a range that was fetched again is the one that was planned: its offsets, keys and values.

Pure. The sink runner asks it for a plan, and again before a replay. Where batches begin and end makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from crc32c import crc32c

_NULL = -1  # in place of a length: no key is not an empty key


def checksum(batches: Iterable[pa.RecordBatch]) -> str:
    """Of records in offset order (columns: `kzconsumer.records.columns.SCHEMA`); 40 hexadecimal digits."""
    offsets = 0
    lengths = {"key": 0, "value": 0}
    contents = {"key": 0, "value": 0}
    for batch in batches:
        numbers = batch.column("offset").to_numpy(zero_copy_only=False).astype("<i8", copy=False)
        offsets = crc32c(numbers.data, offsets)
        for name in lengths:
            column = batch.column(name)
            _, ends_buffer, data = column.buffers()
            if ends_buffer is None or len(column) == 0:
                continue
            ends = np.frombuffer(memoryview(ends_buffer), np.int32)[column.offset : column.offset + len(column) + 1]
            sizes = np.diff(ends).astype("<i4", copy=False)
            if column.null_count:
                sizes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
            lengths[name] = crc32c(sizes.data, lengths[name])
            if data is not None:
                contents[name] = crc32c(memoryview(data)[ends[0] : ends[-1]], contents[name])
    return "".join(f"{crc:08x}" for crc in (offsets, *lengths.values(), *contents.values()))
