"""The forms of fetched records: one interface, the same records, and a clear error for what a form does not support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pyarrow as pa
import pytest

from kzconsumer.offsets.progress import handed_out
from kzconsumer.records._native import allocated_bytes, join
from kzconsumer.records.columns import SCHEMA
from kzconsumer.records.decode import decode
from kzconsumer.records.forms import NO_RECORDS, ColumnRecords, DecodedRecords, Records, Unfetched
from tests.support.chunks import messages
from tests.support.record_sets import Record, record_batch

RECORDS = [
    Record(b"k", b"v", ((b"trace", b"\x00"), (b"caf\xe9", None)), 5),
    Record(None, b"", (), -1),
    Record(b"", None, (), 0),
]
DATA = memoryview(record_batch(RECORDS, base_offset=40, offset_deltas=[0, 7, 9]))


def decoded(data: memoryview = DATA) -> DecodedRecords:
    records = decode(data, topic="orders", partition=3, start=0).records
    assert isinstance(records, DecodedRecords)
    return records


def in_arrow() -> ColumnRecords:
    """A part of a batch, between others."""
    others = record_batch([*RECORDS[:1], *RECORDS, *RECORDS[:1]], base_offset=39, offset_deltas=[0, 1, 8, 10, 20])
    return ColumnRecords(decoded(memoryview(others)).columns().slice(1, 3))


def test_parts() -> None:
    """The same rows as messages and as columns. What is outside counts as the nearest end."""
    whole, columns = messages(decoded()), decoded().columns()
    for first, until in product(range(-2, 5), (None, *range(-2, 5))):
        part = decoded().slice(first, until)
        batch = part.columns()
        batch.validate(full=True)
        begin, end = min(max(first, 0), 3), 3 if until is None else max(until, 0)
        assert len(part) == batch.num_rows
        assert messages(part) == whole[begin:end]
        assert batch == columns.slice(begin, max(end - begin, 0))


def test_a_part_of_a_part() -> None:
    part = decoded().slice(1).slice(1)
    assert [messages(part), part.columns()] == [messages(decoded())[2:], decoded().columns().slice(2)]


@pytest.mark.parametrize("headers", [(), ((b"trace", b"12345678"),)], ids=["plain", "headers"])
def test_bytes_are_those_of_the_columns(headers: tuple[tuple[bytes, bytes | None], ...]) -> None:
    some = [Record(b"key", bytes(n), headers) for n in range(300)] + [Record(None, None)] * 700
    records = decode(memoryview(record_batch(some, base_offset=0)), topic="orders", partition=3, start=0).records
    for part in (records, records.slice(100, 900), records.slice(700)):
        assert part.nbytes == pytest.approx(part.columns().nbytes, rel=0.01)


@pytest.mark.parametrize("form", [decoded, in_arrow])
@pytest.mark.parametrize("offset", [-1, 0, 40, 41, 47, 48, 49, 50, 100])
def test_records_below_an_offset(form: Callable[[], Records], offset: int) -> None:
    part = form().below(offset)
    assert form().rows_below(offset) == len(part)
    assert [message.offset for message in part.messages()] == [each for each in (40, 47, 49) if each < offset]
    assert part.columns() == decoded().columns().slice(0, len(part))


@pytest.mark.parametrize("form", [decoded, in_arrow])
@pytest.mark.parametrize(
    "spans",
    [
        (),
        ((47, 48),),
        ((40, 41),),
        ((41, 47),),
        ((0, 99),),
        ((40, 41), (49, 50)),
        ((0, 47), (48, 60)),
        ((41, 42), (47, 49)),
    ],
)
def test_records_without_some_are_in_one_piece(form: Callable[[], Records], spans: Sequence[tuple[int, int]]) -> None:
    """A destination gets one batch, whatever was rejected of it."""
    left = [each for each in (40, 47, 49) if not any(first <= each < until for first, until in spans)]
    kept = form().without(spans)
    assert len(kept) == (1 if left else 0)
    assert [message.offset for each in kept for message in each.messages()] == left
    assert [row for each in kept for row in each.columns().to_pylist()] == [
        row for row in decoded().columns().to_pylist() if row["offset"] in left
    ]


@pytest.mark.parametrize("form", [decoded, in_arrow])
@pytest.mark.parametrize(("first", "until"), [(0, None), (1, 2), (1, None), (2, 9), (3, None), (2, 1)])
def test_messages_that_nobody_acknowledges(form: Callable[[], Records], first: int, until: int | None) -> None:
    found = list(form().slice(first, until).messages())
    assert found == messages(decoded())[first:until]
    assert [handed_out(message) for message in found] == [None] * len(found)


@pytest.mark.parametrize("form", [DecodedRecords.slice, lambda records, first: ColumnRecords(records.columns())])
def test_messages_of_thousands_of_records(form: Callable[[DecodedRecords, int], Records]) -> None:
    some = [Record(b"%d" % n, b"", ((b"n", b"%d" % n),) if n % 3 else ()) for n in range(2500)]
    records = decoded(memoryview(record_batch(some, base_offset=7)))
    assert list(form(records, 0).messages()) == messages(records)


def test_messages_do_not_keep_the_records() -> None:
    before = allocated_bytes()
    kept = [next(iter(decoded(memoryview(record_batch([Record(None, bytes(1 << 20))], base_offset=0))).messages()))]
    assert len(kept) == 1
    assert allocated_bytes() < before + 1000


PIECES = [
    [Record(None, b"no key"), Record(None, b"")],
    [Record(b"k", None, timestamp=-1), Record(b"", b"x" * 300)],
    [Record(b"k" * 400, b"v", ((b"a", b"1"), (b"a", None))), Record(b"k", b"v", ((b"", b""),))],
    [Record(None, None)] * 20,
    [Record(b"k", b"v", ((b"trace", b"%d" % n),) * n) for n in range(90)],
]


def pieces(chosen: Sequence[int]) -> list[DecodedRecords]:
    """Each a part of a larger one, from offset 1000 times its place on."""
    return [
        decoded(
            memoryview(
                record_batch(
                    [RECORDS[0], *PIECES[n], RECORDS[0]],
                    base_offset=1000 * place,
                    log_append_time=5 if n % 2 else None,
                )
            )
        ).slice(1, 1 + len(PIECES[n]))
        for place, n in enumerate(chosen)
    ]


@pytest.mark.parametrize(
    "chosen", [(0,), (0, 0), (0, 1), (1, 0), (2, 0, 3), (3, 3, 2), (4, 2), (3, 4, 4, 0, 1), tuple(range(5)) * 3]
)
def test_joined_pieces_have_the_same_records(chosen: Sequence[int]) -> None:
    first, *following = separate = pieces(chosen)
    joined = first.joined(following)
    joined.columns().validate(full=True)
    assert list(joined.messages()) == [message for each in separate for message in each.messages()]
    assert joined.columns().to_pylist() == [row for each in separate for row in each.columns().to_pylist()]
    assert joined.nbytes <= sum(each.nbytes for each in separate)


def test_a_joined_piece_keeps_its_own_records_alone() -> None:
    before = allocated_bytes()
    large = decoded(memoryview(record_batch([Record(b"k", b"v"), Record(b"k", bytes(1 << 20))], base_offset=0)))
    joined = large.slice(0, 1).joined([])
    del large
    assert (len(joined), allocated_bytes() < before + 1000) == (1, True)


def test_pieces_that_cannot_be_joined() -> None:
    records = decoded()
    with pytest.raises(ValueError, match="offsets must increase"):
        records.slice(1).joined([records.slice(0, 1)])
    with pytest.raises(ValueError, match="offsets must increase"):
        records.joined([records])
    with pytest.raises(TypeError, match="only Columns can be joined"):
        join([records.decoded, b""])  # type: ignore[list-item]
    large = decoded(memoryview(record_batch([Record(None, bytes(1 << 20))], base_offset=0)))
    with pytest.raises(ValueError, match="the records are too large to join"):
        join([large.decoded] * 2048)
    assert len(join([])) == 0


def test_columns_outlive_what_they_are_made_of() -> None:
    records = decoded()
    batch = records.columns()
    columns = [batch.column(name) for name in batch.schema.names]
    wanted = decoded().columns().to_pylist()
    before = allocated_bytes()
    del records, batch
    assert allocated_bytes() == before
    assert pa.RecordBatch.from_arrays(columns, schema=SCHEMA).to_pylist() == wanted
    del columns
    assert allocated_bytes() < before


def test_a_range_without_records() -> None:
    assert (len(NO_RECORDS), messages(NO_RECORDS), NO_RECORDS.columns().num_rows) == (0, [], 0)
    assert len(NO_RECORDS.slice(0, 5)) == len(NO_RECORDS.below(7)) == 0


def test_records_that_a_sink_fetches_itself_are_not_at_hand() -> None:
    ranges = Unfetched(40, 50)
    assert (len(ranges), ranges.nbytes, len(ranges.below(45))) == (10, 0, 5)
    sized = Unfetched(40, 50, 2.5)
    assert (sized.nbytes, sized.below(44).nbytes, sized.slice(1, 3).nbytes, sized.between(42, 44).nbytes) == (
        25,
        10,
        5,
        5,
    )
    for refused in (ranges.messages, ranges.columns):
        with pytest.raises(TypeError, match='a sink that wants "ranges" fetches their records itself'):
            refused()
    with pytest.raises(TypeError, match="Unfetched are not in the memory of the decoder"):
        _ = ranges.decoded
