"""No client asks in haste: what brought nothing is asked again after a pause. Checked at every request to a broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kzconsumer.model import TopicPartition
from tests.support.simulated.virtual_time import World

MOST = 20
"""Requests of one kind about one partition within a second. Pauses of 0.1 s and more that grow allow half of that."""


class Haste:
    """Of one connection: who opens one after the other is found by the network."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: dict[tuple[int, TopicPartition], deque[float]] = {}

    def count(self, key: int, partitions: Iterable[TopicPartition]) -> None:
        """These were asked for by a request of this kind, and not for the sake of others."""
        now = self._world.now
        for partition in partitions:
            asked = self._asked.setdefault((key, partition), deque(maxlen=MOST))
            hasty = len(asked) == MOST and asked[0] > now - 1.0
            assert not hasty, f"at {now:.3f}: {MOST} requests of key {key} for {partition} within a second"
            asked.append(now)
