"""Java's String.hashCode, the number by which the original's round robin shuffles partitions.

Pure, owns no state. Called by the round-robin assignors; plugin authors have better hashes to choose from.
"""

from __future__ import annotations

from kzconsumer.model import utf16_order


def java_hash(text: str) -> int:
    """`java.lang.String.hashCode`: s[0]*31^(n-1) + ... + s[n-1] over UTF-16 units, a signed 32-bit number."""
    units = memoryview(utf16_order(text))
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
