"""A destination restored from an older copy: the next claim finds that it lacks committed ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kzconsumer.model import RangeIdentity
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.servers.test_plan_handover import whole
from tests.core.servers.test_replay import Sink, Target, consume
from tests.support.command_line import CommandLine
from tests.support.members import stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session


class Asked(Sink):
    """Records the ranges that it had to look up."""

    destination = "rows in memory"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.questions: list[list[tuple[int, int, int]]] = []

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        self.questions.append(sorted((each.partition, each.first, each.until) for each in ranges))
        return await super().has(ranges)


async def produced(cluster: Cluster, topic: str, first: int, end: int) -> None:
    records = [Sent(partition, None, b"%d" % n) for n in range(first, end) for partition in range(2)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def test_the_partition_stops_and_others_flow(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 2)
    await produced(cluster, unique, 0, 10)
    target = Target()
    await consume(cluster, unique, Asked(target), lambda: whole(target, (0, 1), 10))
    await produced(cluster, unique, 10, 20)
    second = Asked(target)
    await consume(cluster, unique, second, lambda: whole(target, (0, 1), 20))
    assert second.questions == [[(0, 0, 10), (1, 0, 10)]], "one question for all claims"
    lost = next(each for each in target.ranges if (each.partition, each.until) == (1, 20))
    records = target.ranges.pop(lost)

    await produced(cluster, unique, 20, 30)
    sink = Asked(target)
    with capture_logs() as logs:
        await consume(cluster, unique, sink, lambda: whole(target, [0], 30) and len(sink.questions) > 1)
    assert {part.partition for batch in sink.batches for part in batch.ranges} == {0}
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [30, 20]
    (output,) = [each for each in logs if each["log_level"] == "error"]
    assert output["event"] == "partition not consumed"
    for text in ("rows in memory", f"{unique}-1", "offsets 10 to 20", "sink verify", "offsets reset"):
        assert text in output["reason"], output["reason"]
    async with session(cluster.connect) as zookeeper:
        assert not await zookeeper.exists(f"/consumers/{unique}/owners/{unique}/1")

    target.ranges[lost] = records  # the rest was restored, too
    await consume(cluster, unique, Asked(target), lambda: whole(target, (0, 1), 30))


@pytest.mark.parametrize("way_out", [["--to-current"], ["--to-offset", "10", "--republish"]])
async def test_the_documented_remedies(
    cluster: Cluster,
    unique: str,
    capsys: pytest.CaptureFixture[str],
    way_out: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where the command leaves its undo file
    await create_topic(cluster.connect, unique, 2)
    target = Target()
    for end in (10, 20):
        await produced(cluster, unique, end - 10, end)
        await consume(cluster, unique, Sink(target), lambda end=end: whole(target, (0, 1), end))  # type: ignore[misc]
    for lost in [each for each in target.ranges if each.until == 20]:
        del target.ranges[lost]
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    done = await kzconsumer("offsets", "reset", unique, *way_out, "--topic", unique, "--execute")
    assert done.status == 0, done.err
    await produced(cluster, unique, 20, 30)
    first = 20 if way_out == ["--to-current"] else 10

    def there() -> bool:
        parts = sorted((each.partition, each.epoch, each.first) for each in target.ranges)
        return [each for each in parts if each[1] == 1] != [] and all(
            sum(each.until - each.first for each in target.ranges if (each.partition, each.epoch) == (n, 1))
            == 30 - first
            for n in range(2)
        )

    await consume(cluster, unique, Sink(target), there)


async def test_a_destination_without_lookup_is_written_to(cluster: Cluster, unique: str) -> None:
    """Such as a user's function, which gets each planned range again until it is committed."""

    class Forgetful(Sink):
        remembers = False

        async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
            return []

    await create_topic(cluster.connect, unique, 2)
    target = Target()
    for end in (10, 20, 30):
        await produced(cluster, unique, end - 10, end)
        await consume(cluster, unique, Forgetful(target), lambda end=end: whole(target, (0, 1), end))  # type: ignore[misc]
