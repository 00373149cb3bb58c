"""Checksums detect damage in batches of every size, in every form of decoding."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest
from crc32c import crc32c

from kzconsumer.records import layout as L
from kzconsumer.records.decode import decode
from kzconsumer.records.few_records import MOST_BYTES, decode_few
from kzconsumer.records.kernel_loading import load_kernels
from kzconsumer.records.kernel_set import KernelSet
from kzconsumer.records.python_kernels import PYTHON_KERNELS
from kzconsumer.records.whole_batches import keep
from tests.support.record_sets import Record, record_batch

SIZES = [1, 2, 3, 5, 9, 20, 100, L.SMALL_BATCH - 100, L.SMALL_BATCH, 4096, 65_536, 1 << 20, 3_000_001]
"""Sizes of the only value of a batch, in bytes."""
FEW = [size for size in SIZES if size < MOST_BYTES]


def as_columns(data: bytes, kernels: KernelSet) -> bool:
    found = decode(memoryview(data), topic="t", partition=0, start=40, kernels=kernels)
    assert found.corrupt is None or (len(found.records), found.next_offset) == (0, 40)
    return found.corrupt is None


def as_bytes(data: bytes) -> bool:
    found = keep(memoryview(data), 40)
    assert found.corrupt is None or (len(found.records), found.next_offset) == (0, 40)
    return found.corrupt is None


def as_few(data: bytes) -> bool:
    return decode_few(memoryview(data), topic="t", partition=0, start=40) is not None


ACCEPTS: dict[str, Callable[[bytes], bool]] = {
    "numba": lambda data: as_columns(data, load_kernels()),
    "python": lambda data: as_columns(data, PYTHON_KERNELS),
    "raw": as_bytes,
    "few": as_few,
}


def resealed(data: bytes) -> bytes:
    """The batch with a correct checksum."""
    return data[:17] + struct.pack(">I", crc32c(data[L.CHECKED_FROM :])) + data[L.CHECKED_FROM :]


@pytest.mark.parametrize(
    ("form", "size"), [(form, size) for form in ACCEPTS for size in (FEW if form == "few" else SIZES)]
)
def test_a_flipped_bit_of_a_value_is_detected(form: str, size: int) -> None:
    accepts, chance = ACCEPTS[form], Random(size)
    good = record_batch([Record(None, chance.randbytes(size))], base_offset=40)
    assert accepts(good)
    end = len(good) - 1  # the last byte is the number of headers
    for at in {end - size, end - 1, *(end - 1 - chance.randrange(size) for _ in range(4))}:
        damaged = good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :]
        assert not accepts(damaged), f"byte {at} of {len(good)}"
        assert accepts(resealed(damaged)), "nothing else is wrong with it"
