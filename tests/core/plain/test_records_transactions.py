"""Which records of aborted transactions `decode` leaves out: the same as Kafka's own consumer."""

from __future__ import annotations

import random

import pytest

from kzconsumer.records.decode import Decoded, decode
from kzconsumer.records.forms import NO_RECORDS
from tests.support.record_sets import Record, control_batch, message_set, record_batch

Aborted = list[tuple[int, int]]
TWO = [Record(None, b"x"), Record(None, b"y")]


def sent(base: int, producer: int = -1, *, transactional: bool = True) -> bytes:
    """Two records from `base` on."""
    return record_batch(
        TWO, base_offset=base, transactional=transactional and producer >= 0, producer_id=producer, codec="lz4"
    )


def run(data: bytes, aborted: Aborted, start: int = 0) -> Decoded:
    return decode(memoryview(data), topic="events", partition=7, start=start, aborted=aborted)


def offsets(decoded: Decoded) -> list[int | None]:
    return decoded.records.columns().column("offset").to_pylist()


ABORT, COMMIT = False, True


def marker(base: int, producer: int, commit: bool) -> bytes:
    return control_batch(base, producer_id=producer, commit=commit)


def test_a_response_with_only_aborted_records_is_skipped() -> None:
    assert run(sent(4, 9) + sent(6, 9), [(9, 0)], 5) == Decoded(NO_RECORDS, 8, False, None, 0, epochs=((5, 0),))


def test_records_without_transaction_are_never_left_out() -> None:
    data = sent(0, 9, transactional=False) + sent(2, 9) + message_set(TWO, magic=1, base_offset=4)
    assert offsets(run(data, [(9, 0)])) == [0, 1, 4, 5]


def test_a_marker_emptied_by_compaction_ends_nothing() -> None:
    empty = record_batch([], base_offset=2, last_offset_delta=0, transactional=True, control=True, producer_id=9)
    assert offsets(run(sent(0, 9) + empty + sent(3, 9), [(9, 0)])) == []


@pytest.mark.parametrize("key", [None, b"\0\0\0"])
def test_a_marker_that_cannot_be_read_is_corrupt(key: bytes | None) -> None:
    broken = record_batch([Record(key, b"")], base_offset=4, transactional=True, control=True, producer_id=9)
    decoded = run(sent(0) + sent(2, 9) + broken + sent(5), [(9, 2)])
    assert (offsets(decoded), decoded.next_offset) == ([0, 1], 4)
    assert decoded.corrupt is not None
    assert (decoded.corrupt.offset, "transaction marker" in decoded.corrupt.reason) == (4, True)


def test_a_marker_of_a_later_kind_ends_nothing() -> None:
    later = record_batch([Record(b"\0\1\0\5", b"")], base_offset=2, transactional=True, control=True, producer_id=9)
    assert offsets(run(sent(0, 9) + later + sent(3, 9), [(9, 0)])) == []


def test_random_histories() -> None:
    """Every record of a committed transaction and none of an aborted one, wherever the response begins and ends."""
    rng = random.Random(3)
    for _ in range(60):
        parts: list[tuple[int, bytes]] = []
        open_since: dict[int, int] = {}
        written: dict[int, list[int]] = {}
        ended: list[tuple[int, int, int]] = []  # producer, first and last offset of aborted transactions
        wanted: list[int] = []
        base = 0
        for _ in range(rng.randrange(1, 40)):
            producer = rng.choice([-1, 1, 2, 3, 1 << 40])
            if producer in open_since and rng.random() < 0.4:
                commit = rng.random() < 0.5
                parts.append((base, marker(base, producer, commit)))
                first, own = open_since.pop(producer), written.pop(producer)
                if commit:
                    wanted += own
                else:
                    ended.append((producer, first, base))
                base += 1
                continue
            parts.append((base, sent(base, producer)))
            if producer < 0:
                wanted += [base, base + 1]
            else:
                open_since.setdefault(producer, base)
                written.setdefault(producer, []).extend([base, base + 1])
            base += 2
        stable = min(open_since.values(), default=base)
        shown = [part for part in parts if part[0] < stable]
        if not shown:
            continue
        begin = rng.randrange(len(shown))
        until = rng.randrange(begin, len(shown)) + 1
        start = shown[begin][0] + rng.randrange(2)
        end = shown[until][0] if until < len(shown) else stable
        named = [(producer, first) for producer, first, last in ended if last >= start and first < end]
        rng.shuffle(named)
        decoded = run(b"".join(data for _, data in shown[begin:until]), named, start)
        assert offsets(decoded) == sorted(offset for offset in wanted if start <= offset < end)
        assert (decoded.next_offset, decoded.corrupt) == (max(start, end), None)
