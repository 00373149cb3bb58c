"""Reads the whole group for the status page: only while a client asks for it, and at most once per INTERVAL."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from math import inf

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer.errors import KzConsumerError
from kzconsumer.group.group_overview import OverviewPartition
from kzconsumer.lag.partition import RATED, Measured, PartitionFacts, Reason, Why, partition_lag
from kzconsumer.logs.logger import get_logger
from kzconsumer.member import Member
from kzconsumer.model import TopicPartition
from kzconsumer.status.partition_health import INTERVAL

log = get_logger("kzconsumer.status")

#: Partitions that are read.
MOST = 1000
#: Seconds for one reading.
PATIENCE = 10.0


class GroupPartition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    owner: str | None
    """The text of its owner node; None if there is none."""
    committed: int | None
    end: int | None
    lag: int | None
    """From the committed offset to the end."""
    why: Reason | None
    """Why the lag is unknown; None if it is known."""
    rate: float | None
    """Records committed per second, lately."""


class GroupStatus(msgspec.Struct, frozen=True):
    at: float | None = None
    """When it was read, in seconds since 1970; None if it has not been read."""
    reason: str | None = None
    """Why the last reading failed."""
    partitions: list[GroupPartition] = []
    left_out: int = 0
    """Number of partitions beyond MOST."""


class GroupWatch:
    """`run` reads the group of the present membership when `ask` has been called."""

    def __init__(self, member: Callable[[], Member | None]) -> None:
        self._member = member
        self._asked = anyio.Event()
        self._answered = anyio.Event()
        self._committed: deque[tuple[float, Mapping[TopicPartition, int]]] = deque(maxlen=RATED)
        self._read_at = -inf  # of `kzconsumer.clock`: the time of `status.at` may be set back
        self.status = GroupStatus()
        self.encoded = msgspec.json.encode(self.status)

    def ask(self) -> None:
        self._asked.set()

    async def present(self) -> GroupStatus:
        """Read within the last INTERVAL, or `reason` says why it is older."""
        if now() - self._read_at > INTERVAL:
            answered = self._answered
            self.ask()
            with anyio.move_on_after(INTERVAL + PATIENCE):
                await answered.wait()
        return self.status

    async def run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            try:
                with anyio.fail_after(PATIENCE):
                    self.status = await self._read()
                self._read_at = now() if self.status.at is not None else -inf
            except KzConsumerError as error:
                self._failed(str(error))
            except TimeoutError:
                self._failed("ZooKeeper or the brokers do not answer")
            except Exception:
                log.exception("observing the member failed")  # a fault here must not end the member
                self._failed("internal error, see the log")
            self.encoded = msgspec.json.encode(self.status)
            self._answered.set()
            self._answered = anyio.Event()
            if self.status.at is not None:
                await anyio.sleep(INTERVAL)

    def _failed(self, reason: str) -> None:
        self.status = msgspec.structs.replace(self.status, reason=reason)

    async def _read(self) -> GroupStatus:
        member = self._member()
        if member is None or member.group is None:
            return GroupStatus(reason="not a member of the group at the moment")
        topics = member.group[0].topics
        partitions = sorted(TopicPartition(name, n) for name, topic in topics.items() for n in topic.partitions)
        found = await member.overview.read(partitions[:MOST])
        rates = self._rates({p: each.committed for p, each in found.items() if each.committed is not None})
        return GroupStatus(
            at=time.time(),
            partitions=[_partition(p, each, rates.get(p)) for p, each in found.items()],
            left_out=max(0, len(partitions) - MOST),
        )

    def _rates(self, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        at = now()
        if self._committed and at - self._committed[-1][0] > 3 * INTERVAL:
            self._committed.clear()  # no client has asked for a while
        self._committed.append((at, committed))
        since, first = self._committed[0]
        if at == since:
            return {}
        return {p: max(0.0, (offset - first[p]) / (at - since)) for p, offset in committed.items() if p in first}


def _partition(partition: TopicPartition, seen: OverviewPartition, rate: float | None) -> GroupPartition:
    end = None if isinstance(seen.end, Why) else Measured(seen.end, 0.0)
    facts = PartitionFacts(
        topic=partition.topic,
        partition=partition.partition,
        position=Why("never committed") if seen.committed is None else seen.committed,
        end=end,
        silent=seen.end if isinstance(seen.end, Why) else None,
    )
    found = partition_lag(facts, 0.0, 0.0)
    return GroupPartition(
        *partition,
        owner=seen.owner,
        committed=seen.committed,
        end=end.value if end is not None else None,
        lag=found.lag,
        why=found.why.reason if found.why is not None else None,
        rate=rate,
    )
