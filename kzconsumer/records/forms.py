"""The forms in which fetched records travel from the decoder to the stream or the sink, behind one interface.

The form is chosen once, by what the consumer wants (`kzconsumer.fetcher.reading`), and never changed on the way. To
take messages out of it copies what is taken, to take columns copies nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from kzconsumer.records import _native

if TYPE_CHECKING:
    import pyarrow as pa  # loaded by what is made into columns

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

NO_HEADERS: Headers = ()


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

    @property
    def decoded(self) -> _native.Columns:
        """The records for messages."""
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


class DecodedRecords(Records):
    """Records in the memory of the decoder."""

    __slots__ = ("_columns", "_partition", "_topic")

    def __init__(self, columns: _native.Columns, topic: str, partition: int) -> None:
        self._columns = columns
        self._topic = topic
        self._partition = partition

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def nbytes(self) -> int:
        return self._columns.nbytes

    def slice(self, first: int, until: int | None = None) -> DecodedRecords:
        part = self._columns.slice(first) if until is None else self._columns.slice(first, until)
        return DecodedRecords(part, self._topic, self._partition)

    def below(self, offset: int) -> Records:
        rows = self._columns.rows_below(offset)
        return self.slice(0, rows) if rows else NO_RECORDS

    @property
    def decoded(self) -> _native.Columns:
        return self._columns

    def columns(self) -> pa.RecordBatch:
        from kzconsumer.records.columns import record_batch

        return record_batch(self._columns, self._topic, self._partition)


class ColumnRecords(Records):
    """Records that are an Arrow record batch already, to be written as columns."""

    __slots__ = ("_batch",)

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.num_rows

    @property
    def nbytes(self) -> int:
        return self._batch.nbytes

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


class _NoRecords(Records):
    __slots__ = ()

    def __len__(self) -> int:
        return 0

    @property
    def nbytes(self) -> int:
        return 0

    def slice(self, first: int, until: int | None = None) -> Records:
        return self

    def below(self, offset: int) -> Records:
        return self

    def columns(self) -> pa.RecordBatch:
        from kzconsumer.records.columns import NO_ROWS

        return NO_ROWS


NO_RECORDS = _NoRecords()
"""A range of offsets that holds no record: control records, a gap in the log."""
