"""Memory that ends the process if anything reads or writes one byte outside it.

Everything that is fuzzed is in such memory.
"""

from __future__ import annotations

import ctypes
import mmap

_LIBC = ctypes.CDLL(None)


class GuardedMemory:
    """Memory between two inaccessible pages."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self.size = -(-size // page) * page
        self._map = mmap.mmap(-1, self.size + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.begin = start + page
        self.end = self.begin + self.size
        for guard in (start, self.end):
            assert _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0

    def room(self, size: int, *, at_end: bool = True) -> int:
        """The address of `size` bytes flush against one of the two pages."""
        assert size <= self.size
        return self.end - size if at_end else self.begin

    def put(self, data: bytes, *, at_end: bool = True) -> memoryview:
        address = self.room(len(data), at_end=at_end)
        ctypes.memmove(address, data, len(data))
        return memoryview((ctypes.c_char * len(data)).from_address(address)).cast("B")
