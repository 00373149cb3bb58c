"""How a corrupt batch is skipped: to a position that is certain, or not at all."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest

from kzconsumer.errors import CorruptRecordError
from kzconsumer.fetcher.corrupt_batches import Jump, NoJump, jump, without_way
from kzconsumer.fetcher.fetch_rules import Unusable
from kzconsumer.model import TopicPartition
from tests.support.record_sets import Record, message, message_set, record_batch

RECORDS = [Record(None, b"value %d" % n) for n in range(10)]
FIRST, SECOND, THIRD = (record_batch(RECORDS, base_offset=base) for base in (0, 10, 20))
OLD = [message(1, offset, 5, None, b"value") for offset in (10, 11)]


def unusable(offset: int, position: int, *, cut_off: bool = False) -> Unusable:
    return Unusable(TopicPartition("orders", 3), offset, position, "its checksum does not match", cut_off)


def over(
    *parts: bytes, position: int = 0, offset: int = 10, end_of_log: int = 30, cut_off: bool = False
) -> Jump | NoJump:
    return jump(unusable(offset, position, cut_off=cut_off), memoryview(b"".join(parts)), end_of_log)


def with_bytes(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def test_the_next_batch_determines_the_position_after_it() -> None:
    position = len(FIRST)
    assert over(FIRST, SECOND, THIRD, position=position) == Jump(20, position, position + len(SECOND))
    # Also if the damage is in the corrupt batch's last offset delta or its magic.
    for at, new in ((23, struct.pack(">i", 3)), (23, struct.pack(">i", 2**30)), (16, b"\x7f")):
        damaged = with_bytes(SECOND, at, new)
        assert over(FIRST, damaged, THIRD, position=position) == Jump(20, position, position + len(SECOND))


def test_the_header_of_the_next_batch_is_enough() -> None:
    assert over(SECOND, THIRD[:18]) == Jump(20, 0, len(SECOND))
    assert over(SECOND, THIRD[:17]) is NoJump.MORE


def test_a_compacted_hole_behind_it_is_skipped_as_well() -> None:
    assert over(SECOND, record_batch(RECORDS, base_offset=25), end_of_log=35) == Jump(25, 0, len(SECOND))


def test_a_fetch_position_in_the_middle_of_the_batch() -> None:
    assert over(SECOND, THIRD, offset=15) == Jump(20, 0, len(SECOND))


def test_the_offsets_of_the_last_batch_are_used_if_it_ends_at_the_log_end() -> None:
    assert over(SECOND, end_of_log=20) == Jump(20, 0, len(SECOND))
    assert over(SECOND, end_of_log=30) is NoJump.MORE
    assert over(with_bytes(SECOND, 23, struct.pack(">i", 19)), end_of_log=20) is NoJump.MORE


@pytest.mark.parametrize("size", [-1, 0, 13, 2**31 - 1, len(SECOND) - 12 - 5, len(SECOND) - 12 + 5])
def test_a_damaged_size_is_never_skipped(size: int) -> None:
    damaged = with_bytes(SECOND, 8, struct.pack(">i", size))
    assert not isinstance(over(damaged, THIRD), Jump)


def test_a_next_batch_that_points_back_or_beyond_the_log_is_not_used() -> None:
    assert over(SECOND, FIRST) is NoJump.DAMAGED
    assert over(SECOND, record_batch(RECORDS, base_offset=1000)) is NoJump.DAMAGED


def test_messages_of_old_formats() -> None:
    assert over(*OLD) == Jump(11, 0, len(OLD[0]))
    wrapper = message_set(RECORDS, magic=1, base_offset=11, codec="gzip")
    assert over(OLD[0], wrapper) == Jump(11, 0, len(OLD[0])), "a wrapper does not contain its first offset"
    assert over(OLD[0], end_of_log=11) == Jump(11, 0, len(OLD[0]))


@pytest.mark.parametrize("value", [bytes(30), b"\1" * 30, b"\2" * 40, bytes(range(64)), b"\0\0\0\1" * 9])
def test_a_damaged_size_of_an_old_message_leads_to_another_message_or_is_refused(value: bytes) -> None:
    log = [message(1, offset, 5, None, value) for offset in range(10, 20)]
    begins = dict(zip(accumulate(map(len, log)), range(11, 21), strict=True))
    for size in range(-1, len(b"".join(log))):
        way = over(with_bytes(log[0], 8, struct.pack(">i", size)), *log[1:], end_of_log=20)
        assert not isinstance(way, Jump) or begins.get(way.end) == way.until, size


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("key", "value"), [(None, None), (b"", None), (None, b""), (b"k", b"value")])
def test_the_smallest_messages_are_passed_over(magic: int, key: bytes | None, value: bytes | None) -> None:
    """Without key and value: nothing of an old format is shorter."""
    one, other = (message(magic, offset, 5, key, value) for offset in (10, 11))
    assert over(one, other) == Jump(11, 0, len(one))
    assert over(other, one, offset=11, end_of_log=30) is NoJump.DAMAGED, "the next one does not follow"
    assert over(one, end_of_log=11) == Jump(11, 0, len(one))


def test_a_message_larger_than_the_largest_fetch() -> None:
    part = OLD[0][:-2]
    assert over(part, cut_off=True) == Jump(11, 0, len(part))
    assert over(part, cut_off=True, end_of_log=10) is NoJump.DAMAGED
    assert over(SECOND[:-2], cut_off=True) is NoJump.DAMAGED, "brokers that know batches send the first one whole"
    assert over(b"\0" * 11, cut_off=True) is NoJump.MORE


def test_the_error_names_partition_offset_and_why_it_cannot_be_skipped() -> None:
    error = without_way(unusable(10, 0))
    assert isinstance(error, CorruptRecordError)
    assert str(error) == (
        "corrupt batch in orders-3 at offset 10: its checksum does not match, "
        "and the start of the next batch cannot be determined"
    )
