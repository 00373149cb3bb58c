"""The forms in which fetched records travel from the decoder to the stream or the sink, behind one interface.

The form is chosen once, by what the consumer wants (`kzconsumer.fetcher.fetch_rules`), and never changed on the way. To
take messages out of it copies what is taken, to take columns copies nothing. Only columns need Arrow.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from kzconsumer.records import _native

if TYPE_CHECKING:
    import pyarrow as pa


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

NO_HEADERS: Headers = ()

_NOT_FETCHED = 'a sink that wants "ranges" fetches their records itself'

# Messages are made of so many records at a time, whose headers are Python values then.
_ROWS = 1000


class Records(ABC):
    """Records of one partition, with strictly increasing offsets."""

    __slots__ = ()

    fetched: ClassVar[bool] = True
    """False if only their offsets are known."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of records; of `Unfetched`, number of offsets."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size of the records alone, in bytes."""

    @abstractmethod
    def slice(self, first: int, until: int | None = None) -> Records:
        """The records from index `first` on, below index `until`."""

    @abstractmethod
    def rows_below(self, offset: int) -> int:
        """Number of records with lower offsets."""

    def below(self, offset: int) -> Records:
        """The records with lower offsets."""
        rows = self.rows_below(offset)
        return self.slice(0, rows) if rows else NO_RECORDS

    def between(self, first: int, until: int) -> Records:
        """The records with `first <= offset < until`."""
        return self.below(until).slice(self.rows_below(first)) if self.rows_below(until) else NO_RECORDS

    def without(self, offsets: Sequence[tuple[int, int]]) -> list[Records]:
        """The records outside of these spans of offsets, which are in order."""
        rest: Records = self
        kept: list[Records] = []
        for first, until in offsets:
            if len(before := rest.below(first)):
                kept.append(before)
            rest = rest.slice(rest.rows_below(until))
        if len(rest):
            kept.append(rest)
        if len(kept) < 2 or not self.fetched:
            return kept
        from kzconsumer.records.columns import joined

        return [ColumnRecords(joined([each.columns() for each in kept]))]

    @abstractmethod
    def messages(self) -> Iterator[_native.Message]:
        """Each record as a message, which stands for no range to acknowledge."""

    @abstractmethod
    def columns(self) -> pa.RecordBatch:
        """A batch with the columns of `kzconsumer.records.columns.SCHEMA`."""

    @property
    def decoded(self) -> _native.Columns:
        """The records in the memory of the decoder. Raises TypeError if they are not there."""
        raise TypeError(f"{type(self).__name__} are not in the memory of the decoder")


class DecodedRecords(Records):
    """Records in the memory of the decoder."""

    # Copies: one view would keep its whole response in memory, and budgets count the bytes that are held.
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

    def joined(self, following: Sequence[Records]) -> DecodedRecords:
        """A copy of these records and of those that follow in the same partition."""
        pieces = (self._columns, *(each.decoded for each in following))
        return DecodedRecords(_native.join(pieces), self._topic, self._partition)

    def rows_below(self, offset: int) -> int:
        return self._columns.rows_below(offset)

    def messages(self) -> Iterator[_native.Message]:
        lot = _native.Lot()
        for first in range(0, len(self), _ROWS):
            lot.load(self._columns.slice(first, first + _ROWS), self._topic, self._partition, None, 0)
            lot.allow(_ROWS)
            yield from iter(lot.take, None)

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

    def slice(self, first: int, until: int | None = None) -> ColumnRecords:
        return ColumnRecords(self._batch.slice(first, None if until is None else max(until - first, 0)))

    def rows_below(self, offset: int) -> int:
        from kzconsumer.records.columns import rows_below

        return rows_below(self._batch, offset)

    def messages(self) -> Iterator[_native.Message]:
        from kzconsumer.records.columns import messages

        for first in range(0, len(self), _ROWS):
            yield from messages(self._batch.slice(first, _ROWS))

    def columns(self) -> pa.RecordBatch:
        return self._batch


class Unfetched(Records):
    """A range of offsets whose records the consumer fetches itself. `weight`: bytes of an offset in the log, about."""

    __slots__ = ("first", "until", "weight")

    fetched = False

    def __init__(self, first: int, until: int, weight: float = 0.0) -> None:
        self.first = first
        self.until = until
        self.weight = weight

    def __len__(self) -> int:
        return self.until - self.first

    @property
    def nbytes(self) -> int:
        return int(len(self) * self.weight)

    def slice(self, first: int, until: int | None = None) -> Unfetched:
        end = self.until if until is None else min(self.first + until, self.until)
        return Unfetched(min(self.first + first, end), end, self.weight)

    def rows_below(self, offset: int) -> int:
        return min(max(offset - self.first, 0), len(self))

    def messages(self) -> Iterator[_native.Message]:
        raise TypeError(_NOT_FETCHED)

    def columns(self) -> pa.RecordBatch:
        raise TypeError(_NOT_FETCHED)


class _NoRecords(Records):
    __slots__ = ()

    def __len__(self) -> int:
        return 0

    @property
    def nbytes(self) -> int:
        return 0

    def slice(self, first: int, until: int | None = None) -> Records:
        return self

    def rows_below(self, offset: int) -> int:
        return 0

    def messages(self) -> Iterator[_native.Message]:
        return iter(())

    def columns(self) -> pa.RecordBatch:
        from kzconsumer.records.columns import NO_ROWS

        return NO_ROWS


NO_RECORDS = _NoRecords()
"""A range of offsets that holds no record: control records, a gap in the log."""


Content: TypeAlias = "str | dict[str, str] | None"
"""Text if valid UTF-8, else `{"base64": ...}`; null stays null."""


def content(raw: bytes | None) -> Content:
    """The bytes of a key, value or header as JSON."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}
