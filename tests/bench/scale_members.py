"""Members of one group in one process: `python -m tests.bench.scale_members CONNECT GROUP TOPICS MEMBERS SPREAD`.

Run by `tests.bench.scale`, several at a time. Standard output: a line when ready, then one Progress as JSON for each
line on standard input, of which the first starts the members. The end of the input ends it.
"""

from __future__ import annotations

import random
import struct
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec

import kzconsumer
from kzconsumer import clock
from kzconsumer.consumer import ConsumerConnector
from kzconsumer.group.rebalance_listener import RebalanceListener
from kzconsumer.logs import setup
from kzconsumer.model import TopicPartition
from kzconsumer.zookeeper.link import Link
from tests.support.members import sessions_of
from tests.support.zookeeper_operations import OPERATIONS

SESSION_TIMEOUT = "30s"


class Progress(msgspec.Struct, frozen=True):
    """Of all members of one process."""

    held: int
    """Partitions."""
    changed: float
    """When that last changed, on `kzconsumer.clock`; 0 before."""
    rebalances: dict[str, int]
    """By member: how often it read the group and computed."""
    requests: dict[str, int]
    """To ZooKeeper, by kind; the session's own probes are multis."""


class _Held(RebalanceListener):
    """What one member reports to own."""

    def __init__(self) -> None:
        self.partitions: set[TopicPartition] = set()
        self.changed = 0.0
        self.consumer: ConsumerConnector | None = None

    async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self.partitions |= partitions
        self.changed = clock.now()

    async def on_revoked(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self.partitions -= partitions
        self.changed = clock.now()

    on_lost = on_revoked


class _Counts:
    """Counts requests of this process by observing internals."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        send = Link.send

        def counted_send(link: Link, body: bytes, *args: Any) -> None:
            (code,) = struct.unpack_from("!i", body)
            self.requests[OPERATIONS.get(code, str(code))] += 1
            send(link, body, *args)

        setattr(Link, "send", counted_send)  # noqa: B010  (mypy takes no assignment to a method)


async def _member(settings: kzconsumer.Settings, topics: dict[str, int], held: _Held, after: float) -> None:
    await anyio.sleep(after)
    async with kzconsumer.connect(settings, listener=held) as consumer:
        held.consumer = consumer
        await consumer.create_message_streams(topics)
        await anyio.sleep_forever()


async def _run(connect: str, group: str, topics: Sequence[str], members: int, spread: float) -> None:
    counts = _Counts()
    settings = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": connect, "session_timeout": SESSION_TIMEOUT},
            "group": {"id": group},
            "fetch": {"max_wait": "1s"},  # no record arrives; frequent fetches of many members are a load
        }
    )
    members_held = [_Held() for _ in range(members)]
    print("ready", flush=True)
    async with anyio.create_task_group() as tasks:
        begun = False
        while await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            if not begun:
                begun = True
                for held in members_held:
                    tasks.start_soon(_member, settings, dict.fromkeys(topics, 1), held, random.uniform(0, spread))
            progress = Progress(
                held=sum(len(held.partitions) for held in members_held),
                changed=max(held.changed for held in members_held),
                rebalances={
                    each.consumer: sessions_of(each).counters.rebalances.seconds.count
                    for held in members_held
                    if (each := held.consumer) is not None
                },
                requests=dict(counts.requests),
            )
            print(msgspec.json.encode(progress).decode(), flush=True)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    setup.configure("error", "console")
    _, at, name, topic_names, number, seconds = sys.argv
    anyio.run(_run, at, name, topic_names.split(","), int(number), float(seconds))
