"""Checksums detect damage in batches of every size."""

from __future__ import annotations

import struct
from random import Random

import pytest
from crc32c import crc32c

from kzconsumer.records.decode import decode
from tests.support.record_sets import Record, record_batch

SIZES = [1, 2, 3, 5, 9, 20, 100, 924, 1024, 4096, 65_536, 1 << 20, 3_000_001]
"""Sizes of the only value of a batch, in bytes."""
CHECKED_FROM = 21


def accepts(data: bytes) -> bool:
    found = decode(memoryview(data), topic="t", partition=0, start=40)
    assert found.corrupt is None or (len(found.records), found.next_offset) == (0, 40)
    return found.corrupt is None


def resealed(data: bytes) -> bytes:
    """The batch with a correct checksum."""
    return data[:17] + struct.pack(">I", crc32c(data[CHECKED_FROM:])) + data[CHECKED_FROM:]


@pytest.mark.parametrize("size", SIZES)
def test_a_flipped_bit_of_a_value_is_detected(size: int) -> None:
    chance = Random(size)
    good = record_batch([Record(None, chance.randbytes(size))], base_offset=40)
    assert accepts(good)
    end = len(good) - 1  # the last byte is the number of headers
    for at in {end - size, end - 1, *(end - 1 - chance.randrange(size) for _ in range(4))}:
        damaged = good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :]
        assert not accepts(damaged), f"byte {at} of {len(good)}"
        assert accepts(resealed(damaged)), "nothing else is wrong with it"
