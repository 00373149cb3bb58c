"""How the ranges of a batch are divided among Spark's tasks."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer_spark.executors.task_parts import FEWEST_BYTES, FEWEST_OFFSETS, task_ranges
from tests.support.extent import seeds

TOGETHER = 20


@pytest.mark.parametrize("seed", seeds(60, 20_000))
def test_every_offset_is_in_one_task_and_tasks_are_of_a_size(seed: int) -> None:
    chance = random.Random(seed)
    largest = chance.choice((10, 3_000, 1_000_000))
    ranges, weights = [], {}
    for partition in range(chance.choice((1, 3, 30, 100))):
        first = chance.randrange(1000)
        part = OffsetRange("t", partition, first, first + chance.randint(1, largest))
        ranges.append(part)
        if chance.random() < 0.5:
            weights[part.topic_partition] = chance.choice((0.0, 20.0, 3_000.0))
    tasks = chance.choice((None, 1, 4, 64))
    found = task_ranges(ranges, tasks, weights)

    def size(parts: list[OffsetRange]) -> float:
        """In what a task is worth."""
        return sum(
            max(n / FEWEST_OFFSETS, n * weights.get(part.topic_partition, 0.0) / FEWEST_BYTES)
            for part in parts
            if (n := part.until - part.first)
        )

    pieces: dict[TopicPartition, list[OffsetRange]] = {}
    for parts in found:
        assert len({part.topic_partition for part in parts}) == len(parts), "a task with two parts of a partition"
        assert len(parts) == 1 or size(parts) <= 1.000001, "a task that could have been two"
        for part in parts:
            pieces.setdefault(part.topic_partition, []).append(part)
    for whole in ranges:
        each = sorted(pieces.pop(whole.topic_partition))
        assert (each[0].first, each[-1].until) == (whole.first, whole.until)
        assert all(one.until == other.first for one, other in pairwise(each))
    assert pieces == {}
    count = sum(map(len, found))
    most = TOGETHER if tasks is None else min(TOGETHER, max(count // tasks, 1))
    assert max(map(len, found)) <= most
    assert tasks is None or len(found) >= min(tasks, count)
    for one, other in pairwise(found):
        joined = [*one, other[0]]
        assert len(one) == most or size(joined) > 0.999999 or one[-1].topic_partition == other[0].topic_partition, (
            "two tasks that could have been one"
        )
    whole_size = size(ranges)
    fair = 25.0 if tasks is None else max(whole_size / tasks, 1.0)
    for parts in found:
        for part in parts:
            one_offset = size([part._replace(until=part.first + 1)])
            assert size([part]) <= fair + one_offset, "a part that is larger than its share"
