"""Record bytes kept as they are: cut to whole batches, checked, and read again."""

from __future__ import annotations

import pytest

from kzconsumer.records.decode import Decoded, decode, keep, messages, walk
from kzconsumer.records.forms import RawRecords
from tests.support.record_sets import Record, control_batch, message_set, record_batch

RECORDS = [Record(b"key %d" % n, b"value %d" % n) for n in range(10)]
SETS = {
    "batches": [record_batch(RECORDS, base_offset=base, codec="zstd") for base in (0, 10, 20)],
    "wrappers": [message_set(RECORDS, magic=1, base_offset=base, codec="gzip") for base in (0, 10, 20)],
    "messages": [message_set(RECORDS, magic=base // 20, base_offset=base) for base in (0, 10, 20)],
    "control": [
        record_batch(RECORDS, base_offset=0),
        control_batch(10, producer_id=1, commit=False),
        record_batch(RECORDS, base_offset=11),
    ],
}


def kept(data: bytes, start: int = 0) -> Decoded:
    """What is kept, after the same bytes have been decoded: the positions must be equal."""
    found = keep(memoryview(data), start)
    decoded = decode(memoryview(data), topic="orders", partition=0, start=start)
    assert (found.next_offset, found.incomplete, found.corrupt) == (
        decoded.next_offset,
        decoded.incomplete,
        decoded.corrupt,
    )
    assert not found.records or isinstance(found.records, RawRecords)
    return found


@pytest.mark.parametrize("kind", SETS)
def test_whole_batches_are_kept_and_a_truncated_one_is_not(kind: str) -> None:
    whole = b"".join(SETS[kind])
    found = kept(whole)
    assert bytes(found.records.raw) == whole
    cut = kept(whole[:-1])
    assert whole.startswith(cut.records.raw)
    assert len(whole) - len(SETS[kind][-1]) <= cut.records.nbytes < len(whole)
    assert kept(whole[:20]).incomplete


def test_a_batch_that_holds_the_start_is_kept_whole_and_those_before_it_are_not() -> None:
    parts = SETS["batches"]
    assert bytes(kept(b"".join(parts), 15).records.raw) == parts[1] + parts[2]
    assert not kept(b"".join(parts), 30).records


def test_a_bad_checksum_ends_it_and_its_position_is_reported() -> None:
    first, second, third = SETS["batches"]
    bad = bytearray(second)
    bad[-1] ^= 1
    found = kept(first + bad + third)
    assert bytes(found.records.raw) == first
    assert found.corrupt is not None
    assert (found.corrupt.offset, found.corrupt.position) == (10, len(first))


def test_a_body_that_cannot_be_decompressed_is_kept() -> None:
    """An archive holds what the log holds, without interpreting it."""
    broken = record_batch([], base_offset=0, codec="zstd", body=b"nothing of the kind", count=1)
    assert bytes(keep(memoryview(broken), 0).records.raw) == broken


def test_entries_have_the_bounds_of_each_batch() -> None:
    data = SETS["batches"][0] + SETS["wrappers"][1] + SETS["messages"][2]
    walked = walk(memoryview(data), check=True)
    assert [(entry.magic, entry.first, entry.last) for entry in walked.entries] == [(2, 0, 9), (1, 19, 19), (1, 20, 29)]
    assert [entry.position for entry in walked.entries[1:]] == [entry.end for entry in walked.entries[:-1]]
    assert (walked.entries[0].position, walked.entries[-1].end, walked.fault) == (0, len(data), None)


def test_a_run_is_split_into_messages() -> None:
    offsets = [0, 1, 5, 9]
    data = message_set(RECORDS[:4], magic=1, base_offset=0, offsets=offsets)
    (run,) = walk(memoryview(data), check=False).entries
    size = len(data) // 4
    assert run.is_run
    assert [(each.position, each.end, each.first, each.last) for each in messages(memoryview(data), run)] == [
        (n * size, (n + 1) * size, offset, offset) for n, offset in enumerate(offsets)
    ]
    assert {each.timestamp for each in messages(memoryview(data), run)} == {RECORDS[0].timestamp}
