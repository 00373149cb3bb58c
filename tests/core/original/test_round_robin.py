"""Round robin over all topics of a mixed group, in both text forms: every event, caused by each kind of member.

A subscription of the original's is a white list: as every member expands it the same, static ones of ours share with
it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kzconsumer.assignors import Assignor, assign_legacy, assign_roundrobin
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.core.original.group import STALL, MixedGroup, mixed_group, our_member
from tests.support.extent import extent, only_nightly
from tests.support.flow import Deliveries
from tests.support.members import Daemon
from tests.support.original import Record, console_consumer
from tests.support.ownership import Owners, by_assignor
from tests.support.servers import Servers
from tests.support.static_original import static_original

_NEWEST = pytest.param("1.1.1", "roundrobin", assign_roundrobin, id="1.1.1")
_ERAS = [_NEWEST, pytest.param("0.10.2.2", "roundrobin-legacy", assign_legacy, id="0.10.2.2")]
IN_ERAS = pytest.mark.parametrize(("version", "assignor", "computed"), extent([_NEWEST], _ERAS))
SESSION = 4.0
ROUND_ROBIN: Mapping[str, Any] = {
    "partition_assignment_strategy": "roundrobin",
    "zookeeper_session_timeout_ms": int(SESSION * 1000),
    "auto_commit_interval_ms": 500,
}
LASTING = {**ROUND_ROBIN, "zookeeper_session_timeout_ms": 30_000}
"""Nobody is killed. On a busy machine a session of 4 s may end, and an original goes on with what it has lost."""


class Expected:
    """Who should own what, by our assignor, as members and topics come and go."""

    def __init__(self, group: MixedGroup, computed: Assignor) -> None:
        self._group = group
        self._computed = computed

    def among(self, **streams: int) -> Owners:
        """Members by name, each with so many streams, of all existing topics."""
        topics = self._group.ownership.topics
        subscriptions: Mapping[str, Mapping[str, int]] = {
            f"{self._group.name}_{name}": dict.fromkeys(topics, number) for name, number in streams.items()
        }
        return by_assignor(self._computed, topics, subscriptions)


def distinguishing_topic(name: str, *members: int, partitions: int = 12) -> str:
    """A topic whose partitions the two versions assign differently, so that neither can be mistaken for the other.

    Between two threads it takes an odd number of partitions with two digits: only those sort at another place.
    """
    subscriptions = [(f"{name}_{number}", streams) for number, streams in enumerate(members)]
    for length in range(1, 100):
        topic = f"{name}-{'x' * length}"  # each letter more changes every bit of the hash
        wanted = {consumer: {topic: streams} for consumer, streams in subscriptions}
        if by_assignor(assign_roundrobin, {topic: partitions}, wanted) != by_assignor(
            assign_legacy, {topic: partitions}, wanted
        ):
            return topic
    raise AssertionError("no topic distinguishes them")


@only_nightly  # the test below: round robin; test_kill.py, test_join_and_leave.py: each event
@IN_ERAS
async def test_events_of_ours(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, version: str, assignor: str, computed: Assignor
) -> None:
    """It joins a running original with three streams and leaves; as a daemon it is stopped, rejoins, and is killed."""
    topic = distinguishing_topic(unique, 3, 1)
    async with mixed_group(servers, cluster, unique, topic=topic, partitions=12) as group:
        expected = Expected(group, computed)
        with console_consumer(
            servers,
            cluster,
            unique,
            topic,
            tmp_path / "m",
            consumer="m",
            version=version,
            from_beginning=True,
            **ROUND_ROBIN,
        ) as original:
            await group.settled("original alone", expected.among(m=1))
            since = time.monotonic()
            async with our_member(cluster, unique, {topic: 3}, "a", assignor=assignor) as ours:
                await group.settled("ours joins", expected.among(a=3, m=1), since=since)
                await group.delivering(original.delivered, ours.delivered)
                since = time.monotonic()
            await group.settled("ours leaves", expected.among(m=1), since=since)
            daemon = Daemon(tmp_path / "d", cluster.connect, unique, {topic: 3}, "", "smallest")
            text = daemon.config.read_text().replace('"6s"', f'"{SESSION:.0f}s"')
            daemon.config.write_text(
                text.replace("[group]\n", f'[group]\nconsumer_id = "d"\nassignor = "{assignor}"\n')
            )

            def output() -> list[Record]:
                return [Record(each["topic"], each["partition"], each["offset"]) for each in daemon.records()]

            for what, number in (("stops", signal.SIGTERM), ("is killed", signal.SIGKILL)):
                daemon.start()
                try:
                    await group.settled(f"daemon joins before it {what}", expected.among(d=3, m=1))
                    await group.delivering(original.delivered, output)
                    daemon.signal(number)
                    since = time.monotonic()
                    assert await daemon.ended() == (0 if number is signal.SIGTERM else -number)
                    await group.settled(f"daemon {what}", expected.among(m=1), since=since)
                finally:
                    assert daemon.process is not None
                    daemon.process.kill()
                    daemon.process.wait()
            members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered, "daemon": output})
            await group.drained(members)
        group.check_ours(ours)
        group.check_doubled(members, original)
        assert group.figures["daemon is killed, s"] < SESSION + 0.5 + STALL


@IN_ERAS
async def test_two_streams_of_an_original_and_three_of_ours(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path, version: str, assignor: str, computed: Assignor
) -> None:
    topic = distinguishing_topic(unique, 2, 3)
    async with mixed_group(servers, cluster, unique, topic=topic, partitions=12) as group:
        expected = Expected(group, computed)
        async with our_member(cluster, unique, {topic: 3}, "m", assignor=assignor) as ours:
            await group.settled("ours alone", expected.among(m=3))
            with static_original(
                servers, cluster, unique, topic, 2, tmp_path / "a", consumer="a", version=version, **LASTING
            ) as original:
                await original.join()
                await group.settled("original joins", expected.among(a=2, m=3))
                await group.delivering(original.delivered, ours.delivered)
                since = time.monotonic()
                await original.leave()
                await group.settled("original leaves", expected.among(m=3), since=since)
            members = Deliveries(**{original.consumer: original.delivered, "ours": ours.delivered})
            await group.drained(members)
        group.check_ours(ours)
        group.check_doubled(members, original)
