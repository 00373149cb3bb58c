"""Whose turn it is among those that have something to be taken: by bytes, so that nobody waits for what others have.

Start-time fair queueing (Goyal, Vin and Cheng, 1996). Each member of the line has a mark: where it stands in bytes. The
one with the lowest mark is next, and what is taken of it is added to its mark. One that comes back after it had nothing
stands where the line is, or at its own mark if that is higher: it has saved up nothing, and has escaped nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Marks that are kept before those that have no effect any more are looked for.
_MOST_MARKS = 64


class Turns(Generic[K]):
    """Between two turns of one that has something, each other has at most one turn more than its bytes allow."""

    def __init__(self) -> None:
        self._line: list[tuple[int, int, K]] = []  # (mark, number), a heap; those no longer valid are dropped late
        self._number = 0
        self._valid: dict[K, int] = {}  # the number of its place in the line
        self._marks: dict[K, int] = {}  # never below `_reached` for those that have something
        self._reached = 0  # the mark of the one that was last served
        self._most_marks = _MOST_MARKS

    def come(self, one: K) -> None:
        """It has something from now on. No effect if it had."""
        if one not in self._valid:
            self._marks[one] = max(self._marks.get(one, 0), self._reached)
            self._stand(one)

    def leave(self, one: K) -> None:
        """It has nothing any more, without having had a turn."""
        self._valid.pop(one, None)

    def next(self) -> K | None:
        """Whose turn it is; None if nobody has anything."""
        while self._line:
            _, number, one = self._line[0]
            if self._valid.get(one) == number:
                return one
            heappop(self._line)
        return None

    def took(self, one: K, size: int, *, more: bool) -> None:
        """It had its turn, for so many bytes. `more`: it has something left."""
        self._reached = max(self._reached, self._marks[one])
        self._marks[one] += max(size, 1)
        if more:
            self._stand(one)
            return
        self._valid.pop(one, None)
        if not self._valid:
            self._reached = max(self._marks.values())  # nobody waits: all start from the same mark
        if len(self._marks) > self._most_marks or not self._valid:
            ahead = {each: mark for each, mark in self._marks.items() if each in self._valid or mark > self._reached}
            self._marks, self._most_marks = ahead, 2 * len(ahead) + _MOST_MARKS

    def _stand(self, one: K) -> None:
        self._number += 1
        self._valid[one] = self._number
        heappush(self._line, (self._marks[one], self._number, one))
