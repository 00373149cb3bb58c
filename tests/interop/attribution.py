"""Which ownership each delivered record belongs to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from tests.interop.evidence import Delivery, Evidence, Exit, Kind, Life, Span
from tests.interop.history import BROKER, TOOL, End, Ownership, Stored

CLOCK = 0.002
"""Seconds: ZooKeeper's times are whole milliseconds of the clock that members read."""


@dataclass
class Reading:
    """What one member delivered of a partition during one ownership, and after it."""

    life: Life
    owned: Ownership
    delivered: list[Delivery] = field(default_factory=list)
    late: list[Delivery] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.life} as owner from {self.owned.began:.3f} to {self.owned.ended:.3f} ({self.owned.end.value})"

    @cached_property
    def stretches(self) -> dict[int, int]:
        """Each offset -> where the offsets begin that were delivered one after the other up to it, the last time."""
        found: dict[int, int] = {}
        last = start = -2
        for each in self.delivered:
            if each.offset != last + 1:
                start = each.offset
            found[each.offset], last = start, each.offset
        return found

    @property
    def session_lost(self) -> bool:
        """A session that its member closes without being stopped is one that it has replaced, or could not use."""
        if self.owned.end is End.CLOSED:
            return self.life.exit is not Exit.STOPPED or self.owned.ended < self.life.stopping
        return self.owned.end is End.EXPIRED


class Handed(NamedTuple):
    """One delivery of a record."""

    at: float
    reading: Reading
    late: bool


class Attribution:
    """The readings of a run, what was delivered before any ownership, and who is behind a consumer id."""

    def __init__(self, evidence: Evidence) -> None:
        self._lives: dict[str, list[Life]] = defaultdict(list)
        for life in sorted(evidence.lives, key=lambda life: life.began):
            self._lives[life.consumer].append(life)
        self.readings: list[Reading] = []
        self.unowned: list[tuple[Life, Delivery]] = []
        self.stored: dict[int, list[Stored]] = defaultdict(list)
        """By partition, in order."""
        for stored in evidence.history.stored:
            self.stored[stored.partition].append(stored)
        by_life: dict[tuple[int, int], list[Reading]] = defaultdict(list)
        for owned in evidence.history.owned:
            owner = self.life(owned.consumer, owned.began)
            if owner is not None:
                reading = Reading(owner, owned)
                self.readings.append(reading)
                by_life[id(owner), owned.partition].append(reading)
        self._stored_by: dict[int, list[Stored]] = {}
        self._delivered: dict[int, set[tuple[int, int]]] = {}
        for life in evidence.lives:
            self._delivered[id(life)] = {(each.partition, each.offset) for each in life.delivered}
            for delivery in life.delivered:
                self._attribute(life, delivery, by_life[id(life), delivery.partition])

    def of_record(self) -> dict[tuple[int, int], list[Handed]]:
        """Partition and offset -> when and by which owner it was delivered, in order."""
        found: dict[tuple[int, int], list[Handed]] = defaultdict(list)
        for reading in self.readings:
            for late, deliveries in ((False, reading.delivered), (True, reading.late)):
                for each in deliveries:
                    found[each.partition, each.offset].append(Handed(each.at, reading, late))
        return {record: sorted(handed, key=lambda each: each.at) for record, handed in sorted(found.items())}

    def life(self, consumer: str, at: float) -> Life | None:
        """The process that had this consumer id then; None for another program."""
        began = [life for life in self._lives[consumer] if life.began <= at + CLOCK]
        return began[-1] if began else None

    def delivered(self, life: Life, partition: int, offset: int) -> bool:
        """Whether this process ever delivered the record."""
        return (partition, offset) in self._delivered[id(life)]

    def stored_by(self, reading: Reading) -> list[Stored]:
        """What its member stored while it owned the partition; a broker stores for kafka-node, also later."""
        found = self._stored_by.get(id(reading))
        if found is None:
            found = [each for each in self.stored[reading.owned.partition] if _by(reading, each)]
            self._stored_by[id(reading)] = found
        return found

    def starts(self, reading: Reading) -> list[int]:
        """The offsets that were stored between the claim and the first delivery, one of which the owner has read."""
        stored = self.stored[reading.owned.partition]
        claimed = bisect_left(stored, reading.owned.zxid, key=lambda each: each.zxid)
        until = (reading.delivered[0].at if reading.delivered else reading.owned.ended) + CLOCK
        since = takewhile(lambda each: each.at <= until, stored[claimed:])
        return [each.offset for each in stored[max(claimed - 1, 0) : claimed]] + [each.offset for each in since]

    def kind(self, stored: Stored) -> Kind | None:
        """Of the member that stored it; None for a tool."""
        if stored.writer in (BROKER, TOOL):
            return Kind.KAFKA_NODE if stored.writer == BROKER else None
        life = self.life(stored.writer, stored.at)
        return life.kind if life else None

    def _attribute(self, life: Life, delivery: Delivery, readings: Sequence[Reading]) -> None:
        number = bisect_right([each.owned.began for each in readings], delivery.at + CLOCK)
        if number == 0:
            self.unowned.append((life, delivery))
            return
        reading = readings[number - 1]
        (reading.delivered if delivery.at <= reading.owned.ended + CLOCK else reading.late).append(delivery)


def _by(reading: Reading, stored: Stored) -> bool:
    if reading.life.kind is Kind.KAFKA_NODE:
        return stored.writer == BROKER and stored.zxid > reading.owned.zxid
    return stored.writer == reading.owned.consumer and reading.owned.zxid < stored.zxid <= reading.owned.last_zxid


def overlap(spans: Iterable[Span], began: float, ended: float) -> float:
    """For how many seconds between these two any of the spans lasted, each counted."""
    return sum(max(0.0, min(span.ended, ended) - max(span.began, began)) for span in spans)
