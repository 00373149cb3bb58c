"""What a range adds to an archive, when a segment ends, and what is recovered after a crash."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer_files import segment_layout
from kzconsumer_files.segment_layout import (
    ArchiveOverlap,
    Begin,
    Recovered,
    Segment,
    SegmentLimits,
    plan,
    recover,
    segment_base,
    segment_name,
    start_of,
)
from tests.support.record_sets import Codec, Record, message_set, record_batch

LARGE = SegmentLimits(1 << 30, None)
DAY = 86_400_000


def records(count: int, timestamp: int = 1_700_000_000_000) -> list[Record]:
    return [Record(None, b"value", timestamp=timestamp + n) for n in range(count)]


def entry(kind: str, base: int, count: int, timestamp: int = 1_700_000_000_000) -> bytes:
    """What a broker has on disk for some records: a batch, a wrapper, or individual messages."""
    if kind == "batch":
        return record_batch(records(count, timestamp), base_offset=base)
    magic = 0 if kind.endswith("0") else 1
    codec: Codec = "gzip" if kind.startswith("wrapper") else "none"
    return message_set(records(count, timestamp), magic=magic, base_offset=base, codec=codec)


class Disk:
    """An archive in memory, and the log it should equal."""

    def __init__(self, limits: SegmentLimits = LARGE) -> None:
        self.limits = limits
        self.last: Segment | None = None
        self.segments: dict[int, bytes] = {}

    def write(self, first: int, until: int, *pieces: bytes) -> None:
        steps, self.last = plan(self.last, first, until, [memoryview(piece) for piece in pieces], self.limits)
        for step in steps:
            if isinstance(step, Begin):
                assert step.base not in self.segments
                self.segments[step.base] = b""
            else:
                self.segments[max(self.segments)] += bytes(step)
        assert self.last is not None
        assert (self.last.base, self.last.size) == (max(self.segments), len(self.segments[max(self.segments)]))

    def crash(self, size: int, more: bytes = b"") -> Recovered:
        """The last segment keeps so many bytes and the file system adds some; then it is recovered."""
        base = max(self.segments)
        found = self.segments[base][:size] + more
        recovered = recover(lambda at, length: found[at : at + length], len(found), base)
        self.last = recovered.segment
        self.segments[base] = found[: recovered.segment.size]
        return recovered

    @property
    def content(self) -> bytes:
        return b"".join(self.segments[base] for base in sorted(self.segments))


def test_names() -> None:
    assert segment_name(42) == "00000000000000000042.log"
    assert segment_base("00000000000000000042.log") == 42
    assert [segment_base(name) for name in ("42.log", "00000000000000000042.index", "x00000000000000000042.log")] == [
        None,
        None,
        None,
    ]


def test_a_new_archive_begins_with_its_first_batch_even_below_the_start() -> None:
    disk = Disk()
    disk.write(5, 10, entry("batch", 0, 10))
    assert list(disk.segments) == [0]
    assert disk.last == Segment(0, len(disk.content), 10, 1_700_000_000_009)


def test_a_replayed_range_adds_only_what_is_new() -> None:
    disk = Disk()
    parts = [entry("batch", base, 10) for base in (0, 10, 20)]
    disk.write(0, 20, *parts[:2])
    disk.write(10, 30, parts[1] + parts[2])
    disk.write(0, 20, parts[0], parts[1])
    assert disk.content == b"".join(parts)


@pytest.mark.parametrize("kind", ["messages0", "messages1"])
def test_a_run_of_messages_is_cut_at_the_end_of_the_archive(kind: str) -> None:
    disk = Disk()
    disk.write(0, 4, entry(kind, 0, 4))
    disk.write(0, 10, entry(kind, 0, 10))
    assert disk.content == entry(kind, 0, 10)


@pytest.mark.parametrize("kind", ["messages0", "messages1"])
def test_a_run_of_messages_is_split_at_the_end_of_a_segment(kind: str) -> None:
    size = len(entry(kind, 0, 1))
    disk = Disk(SegmentLimits(3 * size, None))
    whole = entry(kind, 0, 10)
    disk.write(0, 10, whole[: 2 * size], whole[2 * size :])
    assert {base: len(content) // size for base, content in disk.segments.items()} == {0: 3, 3: 3, 6: 3, 9: 1}
    assert disk.content == whole


def test_a_batch_across_the_end_is_refused() -> None:
    disk = Disk()
    disk.write(0, 5, entry("batch", 0, 5))
    with pytest.raises(ArchiveOverlap, match="offsets 3 to 7 begins below 5"):
        disk.write(3, 8, entry("batch", 3, 5))


def test_a_segment_ends_before_it_becomes_too_large() -> None:
    size = len(entry("batch", 0, 10))
    disk = Disk(SegmentLimits(2 * size, None))
    disk.write(0, 50, b"".join(entry("batch", base, 10) for base in range(0, 50, 10)))
    assert {base: len(content) for base, content in disk.segments.items()} == {0: 2 * size, 20: 2 * size, 40: size}
    alone = Disk(SegmentLimits(1, None))
    alone.write(0, 20, entry("batch", 0, 10), entry("batch", 10, 10))
    assert list(alone.segments) == [0, 10], "one batch fits, however large"


def test_a_segment_ends_by_the_age_of_its_first_record() -> None:
    disk = Disk(SegmentLimits(1 << 30, DAY))
    for base, day in ((0, 0), (1, 1), (2, 2), (3, 3)):
        disk.write(base, base + 1, entry("batch", base, 1, day * DAY))
    assert list(disk.segments) == [0, 2]
    disk.crash(10_000)
    disk.write(4, 5, entry("batch", 4, 1, 5 * DAY))
    assert list(disk.segments) == [0, 2, 4], "the age outlives a crash"


def test_a_hole_at_the_end_becomes_an_empty_segment() -> None:
    """Otherwise the stored offset would be beyond the archive's end at the next start."""
    disk = Disk()
    disk.write(0, 25, entry("batch", 0, 10))
    assert list(disk.segments) == [0, 25]
    assert disk.crash(0) == Recovered(Segment(25, 0, 25, -1), None)
    disk.write(25, 35, entry("batch", 25, 10))
    assert list(disk.segments) == [0, 25]
    disk.write(35, 60)
    assert list(disk.segments) == [0, 25, 60]


def test_a_hole_inside_a_range_needs_no_new_segment() -> None:
    disk = Disk()
    disk.write(0, 40, entry("batch", 0, 10), entry("batch", 30, 10))
    assert list(disk.segments) == [0]


def test_where_a_range_begins() -> None:
    assert start_of(5, [memoryview(entry("batch", 0, 10))]) == 0
    assert start_of(5, [memoryview(entry("batch", 7, 10))]) == 5
    assert start_of(5, [memoryview(entry("wrapper1", 0, 10))]) == 5
    assert start_of(5, []) == 5


KINDS = ("batch", "wrapper0", "wrapper1", "messages0", "messages1")
TAILS = {
    "nothing": b"",
    "zeros": bytes(4096),
    "garbage": bytes(range(1, 256)) * 16,
    "another log's block": entry("batch", 0, 3),
    "a huge size": struct.pack(">qi", 40, 2**31 - 1) + bytes(100),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
def test_recovery_keeps_every_whole_entry_and_nothing_else(kind: str, tail: str) -> None:
    parts = [entry(kind, base, 10) for base in (100, 110, 120)]
    for torn in (0, 1, 11, 12, 17, len(parts[2]) - 5):  # not less: the last bytes are zeros
        disk = Disk()
        disk.write(100, 130, *parts)
        found = disk.crash(len(parts[0]) + len(parts[1]) + torn, TAILS[tail])
        assert disk.last is not None
        if kind.startswith("messages"):  # each message is an entry
            assert 120 <= disk.last.end <= 129
        else:
            assert disk.last.end == 120
        assert b"".join(parts).startswith(disk.content)
        assert (found.fault is not None) == bool(torn or TAILS[tail])
        disk.write(disk.last.end, 130, parts[1] + parts[2])
        assert disk.content == b"".join(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_recovery_finds_a_flipped_byte(kind: str) -> None:
    parts = [entry(kind, base, 10) for base in (100, 110, 120)]
    disk = Disk()
    disk.write(100, 130, *parts)
    damaged = bytearray(disk.segments[100])
    damaged[len(parts[0]) + len(parts[1]) - 1] ^= 1
    disk.segments[100] = bytes(damaged)
    assert disk.crash(10_000).fault is not None
    assert disk.last is not None
    assert disk.last.end == (119 if kind.startswith("messages") else 110)


def test_recovery_of_batches_larger_than_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_layout, "WINDOW", 100)
    disk = Disk()
    parts = [entry("batch", 0, 50), entry("batch", 50, 1), entry("batch", 51, 30)]
    disk.write(0, 81, *parts)
    assert disk.crash(10_000) == Recovered(Segment(0, len(disk.content), 81, 1_700_000_000_049), None)
    assert disk.crash(len(disk.content) - 1).segment.end == 51


LOG = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=12)


@given(LOG, st.data())
def test_after_any_replay_and_crash_the_archive_equals_the_log(
    log: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """Ranges of whole entries, rewritten from any committed position after a crash at any byte of the last segment."""
    entries: list[tuple[int, int, bytes]] = []
    end = 0
    for kind, count, hole in log:
        base = end + hole
        end = base + count
        entries.append((base, end, entry(kind, base, count)))
    disk = Disk(SegmentLimits(data.draw(st.sampled_from([1, 200, 500, 1 << 20])), None))
    at = durable = 0  # the next entry to consume; so many bytes of the archive are committed
    while at < len(entries):
        number = data.draw(st.integers(1, len(entries) - at))
        chosen = entries[at : at + number]
        cut = data.draw(st.integers(0, number))
        pieces = [b"".join(each[2] for each in part) for part in (chosen[:cut], chosen[cut:])]
        first = entries[at - 1][1] if at else 0
        disk.write(first, chosen[-1][1], *[piece for piece in pieces if piece])
        if data.draw(st.booleans()):
            last = len(disk.segments[max(disk.segments)])
            least = max(durable - (len(disk.content) - last), 0)
            disk.crash(
                data.draw(st.integers(least, last)),
                data.draw(st.sampled_from([TAILS["nothing"], TAILS["zeros"], TAILS["garbage"]])),
            )
        else:
            at += number  # committed
            durable = len(disk.content)
    assert disk.content == b"".join(each[2] for each in entries)
