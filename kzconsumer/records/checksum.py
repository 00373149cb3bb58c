"""Checksums of batches: CRC-32C (magic 2) and the tables for both CRCs in the kernels.

Owns the lookup tables, built once. Called by `batches` and the kernels. It does not say what a mismatch means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

# Above this size the extension may release the GIL. Below, giving it up costs more than it gives: to get it back from
# a busy thread takes up to the interpreter's switch interval (5 ms), for a checksum of microseconds.
_RELEASE_GIL_FROM = 1 << 20

CASTAGNOLI, ZLIB = 0, 1
_POLYNOMIALS = (0x82F63B78, 0xEDB88320)


def crc32c_of(data: memoryview) -> int:
    """CRC-32C of contiguous bytes."""
    return crc32c(data, 0, int(len(data) >= _RELEASE_GIL_FROM))


def _build_tables() -> npt.NDArray[np.uint32]:
    """`tables[polynomial, k, byte]`: the CRC of `byte` followed by k zero bytes ("slicing by 8")."""
    tables = np.zeros((2, 8, 256), np.uint32)
    for table, polynomial in zip(tables, _POLYNOMIALS, strict=True):
        crc: npt.NDArray[Any] = np.arange(256, dtype=np.uint32)
        for _ in range(8):
            crc = (crc >> 1) ^ np.where(crc & 1, np.uint32(polynomial), np.uint32(0))
        table[0] = crc
        for k in range(1, 8):
            table[k] = (table[k - 1] >> 8) ^ table[0][table[k - 1] & 255]
    tables.setflags(write=False)
    return tables


TABLES = _build_tables()
