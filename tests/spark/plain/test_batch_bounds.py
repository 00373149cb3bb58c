"""What a batch read of the source has, in a simulated cluster: a model of the bounds, and the records between them.

`servers/test_batch_bounds.py` has real servers.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition

from kzconsumer.errors import ConfigError, KzConsumerError, OffsetLostError
from kzconsumer.fetcher.range_reader import ClusterReader
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Create
from kzconsumer_spark import GroupSource
from tests.support.extent import seeds
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.member import GROUP
from tests.support.simulated.network import CONNECT
from tests.support.simulated.query import COLUMNS, OPTIONS, programs_in, rows_of

PARTITIONS = 3
SETTINGS = """
zookeeper.connect = "{}"
group.id = "{}"
subscription.topics = {{ t = 1 }}
offsets.reset = "{}"
"""
EARLIEST, LATEST = -2, -1


class Logs:
    """Each has lost its beginning; some are empty."""

    def __init__(self, group: SimulatedGroup, chance: random.Random) -> None:
        group.logs.grow("t", PARTITIONS)
        self.spans: dict[TopicPartition, tuple[int, int]] = {}
        for each in group.logs.of("t"):
            end = chance.choice((0, 1, chance.randrange(2, 40)))
            for size in (end // 2, end - end // 2):
                if size:
                    group.logs.grow_log(each, size)
            begin = chance.randint(0, end)
            group.logs.retain(each, begin)
            self.spans[each] = (begin, end)

    def bound(self, chance: random.Random, *, wrong: float) -> dict[TopicPartition, int]:
        """Within the logs, but for a few."""
        off = chance.random() < wrong
        return {
            each: chance.choice((EARLIEST, LATEST, chance.randint(begin - off, end + off)))
            for each, (begin, end) in self.spans.items()
        }

    def offsets(self, bound: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        ends = {each: {EARLIEST: begin, LATEST: end} for each, (begin, end) in self.spans.items()}
        return {each: ends[each].get(at, at) for each, at in bound.items()}

    def expected(
        self, first: dict[TopicPartition, int], until: dict[TopicPartition, int], *, committed: bool
    ) -> list[OffsetRange] | type[KzConsumerError]:
        found = []
        for each, (begin, end) in self.spans.items():
            if not (begin <= first[each] <= end and begin <= until[each] <= end):
                return OffsetLostError
            if first[each] > until[each] and not committed:
                return ConfigError
            if first[each] < until[each]:
                found.append(OffsetRange(*each, first[each], until[each]))
        return found


def text(bound: dict[TopicPartition, int]) -> str:
    return json.dumps({"t": {str(each.partition): at for each, at in bound.items()}})


@pytest.mark.parametrize("seed", seeds(40, 2000))
def test_a_batch_read_has_what_is_between_its_bounds(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with simulated_group(seed, brokers=2) as group, programs_in(group):
        logs = Logs(group, chance)
        options = {"minPartitions": str(chance.randint(1, 5))}
        committed = chance.random() < 0.5
        reset, unknown = chance.choice(("smallest", "largest", "fail")), False
        if committed:
            first = {each: chance.randint(*logs.spans[each]) for each in logs.spans if chance.random() < 0.7}
            for each, at in first.items():
                store(group, GroupPaths(GROUP).offset(each), at)
            unknown = len(first) < len(logs.spans)
            first = {each: first.get(each, span[reset == "largest"]) for each, span in logs.spans.items()}
            options["config"] = str(tmp_path / "group.toml")
            Path(options["config"]).write_text(SETTINGS.format(CONNECT, GROUP, reset))
        else:
            options |= OPTIONS
            bound = logs.bound(chance, wrong=0.1)
            options["startingoffsets"] = text(bound)
            first = logs.offsets(bound)
        ends = logs.bound(chance, wrong=0.1)
        options["endingoffsets"] = text(ends)
        expected = logs.expected(first, logs.offsets(ends), committed=committed)
        if unknown and reset == "fail":
            expected = OffsetLostError
        source = GroupSource(CaseInsensitiveDict(options)).reader(COLUMNS)  # type: ignore[arg-type]
        if isinstance(expected, type):
            with pytest.raises(expected):
                source.partitions()
            return
        tasks = [pickle.loads(pickle.dumps(each)) for each in source.partitions()]
        assert len(tasks) >= min(int(options["minPartitions"]), len(expected))
        for seconds in (0.01, 0.1, 1.0):
            moved = chance.choice(list(logs.spans))
            group.world.after(seconds, lambda moved=moved: group.logs.lead(moved, chance.choice(group.logs.brokers)))  # type: ignore[misc]
        found = [row for task in tasks for row in rows_of(source.read(task))]
        keys = {each: log.key for each, log in group.logs.logs.items()}
        wanted = [(part.topic_partition, range(part.first, part.until)) for part in expected]
        assert sorted(found) == sorted((each, at, keys[each]) for each, offsets in wanted for at in offsets)
        assert not list(source.read(InputPartition(0))), "Spark's own, if there is none"


def store(group: SimulatedGroup, path: str, offset: int) -> None:
    parts = path.split("/")[1:]
    for depth in range(1, len(parts)):
        group.ensemble.operate(Create("/" + "/".join(parts[:depth]), b""))  # refused if it is there
    group.ensemble.operate(Create(path, b"%d" % offset))


@pytest.mark.parametrize(
    ("bounds", "records"),
    [
        ({}, 0),
        ({"startingoffsets": "earliest", "endingtimestamp": f"{1 << 42}"}, 9),
        ({"startingtimestamp": f"{1 << 42}"}, 0),
        ({"startingtimestamp": "1", "endingtimestamp": f"{1 << 42}"}, 9),
    ],
)
def test_a_batch_read_ends_where_the_log_did_when_it_was_looked_at(
    bounds: dict[str, str], records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the log grows, and a group that has read all of it commits the new end."""
    one = TopicPartition("t", 0)
    with simulated_group(1) as group, programs_in(group):
        group.logs.stop()
        group.logs.grow("t", 1)
        group.logs.grow_log(one, 9)
        look = ClusterReader.logs

        async def looked(self: ClusterReader, partitions: Collection[TopicPartition]) -> Any:
            found = await look(self, partitions)
            group.logs.grow_log(one, 5)
            store(group, GroupPaths(GROUP).offset(one), 14)
            return found

        monkeypatch.setattr(ClusterReader, "logs", looked)
        source = GroupSource(CaseInsensitiveDict(OPTIONS | bounds)).reader(COLUMNS)  # type: ignore[arg-type]
        rows = [row for task in source.partitions() for row in rows_of(source.read(task))]
        assert [row[:2] for row in rows] == [(one, at) for at in range(records)]
