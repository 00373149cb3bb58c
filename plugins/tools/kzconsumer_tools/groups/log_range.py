"""The first and the end offset of a partition's log."""

from __future__ import annotations

import msgspec


class LogRange(msgspec.Struct, frozen=True):
    """The offsets that a partition's log holds, `start <= offset < end`."""

    start: int
    end: int

    def clamp(self, offset: int) -> int:
        """The nearest that a consumer can begin at."""
        return min(max(offset, self.start), self.end)
