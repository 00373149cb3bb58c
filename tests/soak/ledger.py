"""Which offsets have arrived, and how often: for one partition, as ranges that grow together.

Millions of records are a few ranges as long as none is missing; overlaps are the redelivered ones.
"""

from __future__ import annotations

from collections import defaultdict


class Ledger:
    def __init__(self) -> None:
        self._held: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self.records = 0
        """How many arrived, including duplicates."""

    def add(self, partition: int, first: int, until: int) -> None:
        self.records += until - first
        held = self._held[partition]
        apart = [each for each in held if each[1] < first or each[0] > until]
        joined = [each for each in held if not (each[1] < first or each[0] > until)]
        whole = (min(first, *(a for a, _ in joined)), max(until, *(b for _, b in joined))) if joined else (first, until)
        self._held[partition] = sorted([*apart, whole])

    @property
    def distinct(self) -> int:
        return sum(b - a for held in self._held.values() for a, b in held)

    @property
    def twice(self) -> int:
        """Redelivered records, counted as often as they were."""
        return self.records - self.distinct

    def missing(self, ends: dict[int, int]) -> int:
        """How many offsets below these ends have not arrived."""
        found = 0
        for partition, end in ends.items():
            found += end - sum(min(b, end) - a for a, b in self._held[partition] if a < end)
        return found
