"""Bytes changed at random, in places where parsers make mistakes: lengths, signs, varints, truncations."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator

from tests.support.record_sets import varint

PIECES = [
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xfe",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 10,
    b"\x80\x80\x80\x80\0",
]


def mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(9):
            case 0 | 1:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                changed[at : at + 1] = rng.choice(PIECES)
            case 3:
                changed[at:at] = rng.choice(PIECES)
            case 4:
                del changed[at : at + rng.randint(1, 12)]
            case 5:
                number = rng.choice([-1, -2, 0, 1, len(changed), 2**31 - 1, -(2**31), rng.randrange(-50, 500)])
                changed[at : at + 4] = struct.pack(">i", number)
            case 6:
                del changed[at:]
            case 7:  # a length that reaches the end of everything, or nearly so
                changed[at : at + 4] = struct.pack(">i", len(changed) - at - rng.randrange(10))
            case 8:
                length = varint(len(changed) - at - rng.randrange(10))
                changed[at : at + len(length)] = length
    return bytes(changed)


def int32(number: int) -> bytes:
    return struct.pack(">i", number)


def lengths_at_their_limits(data: bytes, encode: Callable[[int], bytes], sizes: Iterable[int]) -> Iterator[bytes]:
    """At each place a length that reaches exactly the end of everything, one byte more, or a few less; or -1, or -2.

    What follows such a field lies at the end, or behind it.
    """
    for at in range(len(data)):
        left = len(data) - at
        for size in sizes:
            for number in (*range(left - size - 8, left - size + 2), -1, -2):
                if len(length := encode(number)) == size <= left:
                    yield data[:at] + length + data[at + size :]
