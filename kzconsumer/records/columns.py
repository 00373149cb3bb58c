"""The Arrow columns of decoded records: `SCHEMA`, the buffers that kernels write to, the batch made of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Cells, KernelSet, Table

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

SCHEMA = pa.schema(
    [
        ("topic", pa.dictionary(pa.int8(), pa.string())),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),  # null where the record has none
        ("headers", pa.list_(_HEADER)),
        ("timestamp_type", pa.int8()),  # 0 create time, 1 log append time, -1 none (magic 0)
    ]
)

_NO_HEADERS = pa.array([], _HEADER)
_ZEROS = pa.py_buffer(bytes(1 << 18))


class RecordColumns:
    """Buffers for at most `rows` records whose keys, values and headers have at most `size` bytes together.

    They come from Arrow's pool, which reuses memory: fresh pages would cost more than decoding into them.
    """

    def __init__(self, rows: int, size: int, low: int) -> None:
        self._offsets = _room(8 * rows)
        self._timestamps = _room(8 * rows)
        self._timestamp_types = _room(rows)
        self._keys = _BinaryRoom(rows, size)
        self._values = _BinaryRoom(rows, size)
        buffers = [self._offsets, self._timestamps, *self._keys.buffers(), *self._values.buffers()]
        buffers.append(self._timestamp_types)
        self.outputs: Cells = np.array([buffer.address for buffer in buffers], np.int64)
        self.state: Cells = np.zeros(L.STATE_CELLS, np.int64)
        self.state[L.S_LOW] = low
        self.state[L.S_ROW_CAPACITY] = rows
        self.state[L.S_BYTE_CAPACITY] = size

    def build(self, topic: str, partition: int, table: Table, kernels: KernelSet) -> pa.RecordBatch:
        """The batch of all rows written, of the batches in `table`. Call once: the batch takes over the buffers."""
        cells = self.state.tolist()
        n = cells[L.S_ROWS]
        self._offsets.resize(8 * n)
        self._timestamps.resize(8 * n)
        self._timestamp_types.resize(n)
        has_none = None
        if cells[L.S_TIMESTAMP_NULLS]:
            timestamps = np.frombuffer(memoryview(self._timestamps), np.int64)
            has_none = pa.py_buffer(np.packbits(timestamps != L.NO_TIMESTAMP, bitorder="little").data)
        columns = [
            pa.DictionaryArray.from_arrays(_plain(pa.int8(), n, _zeros(n)), _dictionary(topic), safe=False),
            _plain(pa.int32(), n, pa.py_buffer(np.full(n, partition, np.int32).data)),
            _plain(pa.int64(), n, self._offsets),
            self._keys.build(pa.binary(), n, cells[L.S_KEY_BYTES], cells[L.S_KEY_NULLS]),
            self._values.build(pa.binary(), n, cells[L.S_VALUE_BYTES], cells[L.S_VALUE_NULLS]),
            _plain(SCHEMA.field("timestamp").type, n, self._timestamps, has_none, cells[L.S_TIMESTAMP_NULLS]),
            self._build_headers(n, table, kernels),
            _plain(pa.int8(), n, self._timestamp_types),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _build_headers(self, n: int, table: Table, kernels: KernelSet) -> pa.Array[Any]:
        count = int(self.state[L.S_HEADERS])
        if count == 0:
            return _list(n, _zeros(4 * (n + 1)), _NO_HEADERS)
        ends = _room(4 * (n + 1))
        keys = _BinaryRoom(count, int(self.state[L.S_HEADER_KEY_BYTES]))
        values = _BinaryRoom(count, int(self.state[L.S_HEADER_VALUE_BYTES]))
        addresses = [buffer.address for buffer in (*keys.buffers()[:2], *values.buffers())]
        nulls = kernels.read_headers(table, len(table), ends.address, *addresses)
        key_bytes, value_bytes = self.state[L.S_HEADER_KEY_BYTES : L.S_HEADER_VALUE_BYTES + 1].tolist()
        children = [
            _valid_text(keys.build(pa.binary(), count, key_bytes, 0)),
            values.build(pa.binary(), count, value_bytes, nulls),
        ]
        return _list(n, ends, pa.Array.from_buffers(_HEADER, count, [None], null_count=0, children=children))


class _BinaryRoom:
    """The three buffers of a binary column that is being written."""

    def __init__(self, rows: int, size: int) -> None:
        self._ends = _room(4 * (rows + 1))
        self._data = _room(size)
        self._validity = _room((rows + 7) // 8)

    def buffers(self) -> tuple[pa.Buffer, pa.Buffer, pa.Buffer]:
        """int32 offsets, bytes, validity."""
        return self._ends, self._data, self._validity

    def build(self, kind: pa.DataType, n: int, size: int, nulls: int) -> pa.Array[Any]:
        if nulls == n:
            return pa.Array.from_buffers(kind, n, [_zeros((n + 7) // 8), _zeros(4 * (n + 1)), _zeros(0)], n)
        self._ends.resize(4 * (n + 1))
        self._data.resize(size, shrink_to_fit=True)  # it was large enough for keys and values together
        self._validity.resize((n + 7) // 8)
        return pa.Array.from_buffers(kind, n, [self._validity if nulls else None, self._ends, self._data], nulls)


def _room(size: int) -> pa.ResizableBuffer:
    return pa.allocate_buffer(size, None, True)


def _zeros(size: int) -> pa.Buffer:
    return _ZEROS.slice(0, size) if size <= _ZEROS.size else pa.py_buffer(bytes(size))


@lru_cache(maxsize=256)
def _dictionary(topic: str) -> pa.Array[Any]:
    return pa.array([topic], pa.string())


def _plain(
    kind: pa.DataType, n: int, data: pa.Buffer, validity: pa.Buffer | None = None, nulls: int = 0
) -> pa.Array[Any]:
    return pa.Array.from_buffers(kind, n, [validity, data], nulls)


def _list(n: int, ends: pa.Buffer, child: pa.Array[Any]) -> pa.Array[Any]:
    return pa.Array.from_buffers(SCHEMA.field("headers").type, n, [None, ends], null_count=0, children=[child])


def _valid_text(data: pa.Array[Any]) -> pa.Array[Any]:
    """Header keys as text; invalid UTF-8 is replaced as in Java (`Utils.utf8`)."""
    text = pa.Array.from_buffers(pa.string(), len(data), data.buffers(), null_count=0)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([str(key.as_py(), "utf-8", "replace") for key in data], pa.string())
    return text
