"""The forms in which fetched records travel from the decoder to the stream or the sink, behind one interface.

The form is chosen once, by what the consumer wants (`kzconsumer.fetcher.reading`), and never changed on the way. To
take messages or columns out of it copies what is taken and decodes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa

from kzconsumer.records import layout as L
from kzconsumer.records.columns import SCHEMA

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

NO_HEADERS: Headers = ()


class Rows(NamedTuple):
    """Consecutive records as Python values, one series per field. They keep no other memory than their own."""

    offsets: Sequence[int]
    """A `range` if there are no gaps."""
    keys: Iterable[bytes | None]
    values: Iterable[bytes | None]
    timestamps: Sequence[int]
    """Milliseconds since 1970; -1 for none."""
    timestamp_types: Sequence[int]
    headers: Sequence[Headers] | None
    """None if no record has any."""


class Records(ABC):
    """Records of one partition, with strictly increasing offsets."""

    __slots__ = ()

    whole_batches: ClassVar[bool] = False
    """They are record batches as the broker sent them, which must not be cut or joined."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of records; for raw bytes, where they have not been counted, number of offsets."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size of the records alone, in bytes."""

    def slice(self, first: int, until: int | None = None) -> Records:
        """The records from index `first` on, below index `until`."""
        raise self._not("iterated or cut")

    def below(self, offset: int) -> Records:
        """The records with lower offsets."""
        raise self._not("iterated or cut")

    def rows(self) -> Rows:
        raise self._not("iterated")

    def columns(self) -> pa.RecordBatch:
        """A batch with the columns of `kzconsumer.records.columns.SCHEMA`."""
        raise self._not("made into columns")

    @property
    def raw(self) -> memoryview:
        raise self._not("had as raw bytes")

    def _not(self, what: str) -> TypeError:
        form = "raw bytes" if self.whole_batches else "messages or columns"
        return TypeError(f"records fetched as {form} cannot be {what} (see `wants` of kzconsumer.connect)")


class ColumnRecords(Records):
    """Decoded records as one Arrow record batch."""

    __slots__ = ("_batch",)

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.num_rows

    @property
    def nbytes(self) -> int:
        return self._batch.nbytes

    def slice(self, first: int, until: int | None = None) -> ColumnRecords:
        return ColumnRecords(self._batch.slice(first, None if until is None else max(until - first, 0)))

    def below(self, offset: int) -> Records:
        rows = int(np.searchsorted(self._batch.column("offset").to_numpy(), offset))
        return self.slice(0, rows) if rows else NO_RECORDS

    def rows(self) -> Rows:
        batch, n = self._batch, self._batch.num_rows
        if n == 0:
            return _NO_ROWS
        column = batch.column(2).to_numpy()
        first, last = int(column[0]), int(column[-1])
        keys = batch.column(3)
        timestamps = batch.column(5).view(pa.int64())
        return Rows(
            range(first, last + 1) if last - first == n - 1 else column.tolist(),
            repeat(None) if keys.null_count == n else keys.to_pylist(),
            batch.column(4).to_pylist(),
            _copy(timestamps.fill_null(L.NO_TIMESTAMP) if timestamps.null_count else timestamps),
            _copy(batch.column(7)),
            _headers(cast("pa.ListArray[Any]", batch.column(6))),
        )

    def columns(self) -> pa.RecordBatch:
        return self._batch


class RawRecords(Records):
    """Whole record batches as the broker sent them; the first may begin below the offset that was asked for."""

    __slots__ = ("_data", "_offsets")

    whole_batches = True

    def __init__(self, data: memoryview, offsets: int) -> None:
        """`offsets`: number of offsets for which the batches stand, from the one that was asked for on."""
        self._data = data
        self._offsets = offsets

    def __len__(self) -> int:
        return self._offsets

    @property
    def nbytes(self) -> int:
        return self._data.nbytes

    @property
    def raw(self) -> memoryview:
        return self._data


def _copy(numbers: pa.Array[Any]) -> Sequence[int]:
    return cast("Sequence[int]", np.array(numbers.to_numpy()).data)


def _headers(column: pa.ListArray[Any]) -> list[Headers] | None:
    ends = column.offsets.to_numpy()  # flatten() would import pyarrow.compute: 35 ms of the first message
    if ends[0] == ends[-1]:
        return None
    return [tuple((pair["key"], pair["value"]) for pair in row or ()) for row in column.to_pylist()]


_NO_ROWS = Rows(range(0), (), (), (), (), None)

NO_RECORDS = ColumnRecords(pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA))
"""A range of offsets that holds no record: control records, a gap in the log."""
