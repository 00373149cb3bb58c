"""File permissions that apply to root, too: Linux exempts root by two capabilities, which a thread may drop."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_VERSION: Final = 0x20080522
_PASSING: Final = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def permissions_count() -> Iterator[None]:
    """For this thread, until the block ends. It remains the owner of its files."""
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, for 64 capabilities
    _require(_libc.capget(header, rights))
    before = rights[0]
    rights[0] &= ~_PASSING
    _require(_libc.capset(header, rights))
    try:
        yield
    finally:
        rights[0] = before
        _require(_libc.capset(header, rights))


def _require(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
