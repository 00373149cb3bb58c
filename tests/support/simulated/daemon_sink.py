"""A destination that takes part in exactly once, and the replayable sink of each simulated daemon that writes to it.

`Destination` owns the ranges that it has taken, and their records. What a daemon has sent arrives even if the daemon is
suspended meanwhile, and perhaps if it is killed or cancelled. It may be taken though the daemon gets an error. It may
be restored from a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.sinks.interface import Batch, RangeData
from tests.support.simulated.lost_replies import SYSTEM_ERROR, Loss

if TYPE_CHECKING:
    from tests.support.simulated.daemon import SimulatedDaemon
    from tests.support.simulated.daemons import Daemons

ARRIVES_AFTER = 0.001
ANSWERS_WITHIN = 0.5
"""Seconds until it says which ranges it has, at most."""
_LOOKS_EVERY: Final = 0.2
"""Seconds after which a worker without the lease looks again whether it was renewed."""

Moment = Literal["planned", "written in part", "published", "commit refused"]
"""How far a write is: nothing of it is there, one of its ranges, all; all, and ZooKeeper refuses its commit."""


class Interruption(NamedTuple):
    """What happens to a daemon in the middle of its next write."""

    moment: Moment
    happens: Callable[[], None]


class Destination:
    """See the module."""

    def __init__(self, daemons: Daemons) -> None:
        self._daemons = daemons
        self._taken: dict[RangeIdentity, str] = {}
        self._aside: set[RangeIdentity] = set()
        # By key, which is another one in each topic, and offset.
        self._records: dict[tuple[TopicPartition, bytes | None, int], RangeIdentity] = {}
        self.went_back = False
        """A claim that is older may find that a range is missing which it must have."""

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        return [each for each in ranges if each in self._taken]

    @property
    def ranges(self) -> Collection[RangeIdentity]:
        """What it has taken."""
        return self._taken.keys()

    def take(self, batch: Batch, name: str) -> None:
        """What a daemon of this name has sent. Raises DestinationWentBackError, OSError for a range set aside."""
        if aside := self._aside.intersection(part.identity for part in batch.ranges):
            raise OSError(f"{aside} is set aside")
        for before in batch.follows:
            if before not in self._taken:
                if not self.went_back:
                    self._daemons.violated(f"{name} writes behind {before}, which is not there")
                raise DestinationWentBackError(before)
        for part in batch.ranges:
            if part.identity in self._taken:
                continue
            for other, by in self._taken.items():
                if other[:4] == part.identity[:4] and other.first < part.until and part.first < other.until:
                    self._daemons.violated(f"{name} writes {part.identity}, and {by} has written {other}")
            self._taken[part.identity] = name
            self._take_records(part, name)
            self._daemons.is_there(part)

    def set_aside(self, part: RangeIdentity) -> bool:
        if part not in self._taken:
            self._aside.add(part)
        return part in self._aside

    def _take_records(self, part: RangeData, name: str) -> None:
        for message in part.messages():
            record = part.topic_partition, message.key, message.offset
            if (before := self._records.get(record)) is not None:
                self._daemons.violated(f"{name} writes {record} in {part.identity}, and it is there in {before}")
                return
            self._records[record] = part.identity

    def copy(self) -> Mapping[RangeIdentity, str]:
        return dict(self._taken)

    def restore(self, copy: Mapping[RangeIdentity, str]) -> None:
        """It is what it was when it was copied."""
        self.went_back = True
        for lost in self._taken.keys() - copy.keys():
            del self._taken[lost]
            self._records = {record: at for record, at in self._records.items() if at != lost}
            self._daemons.is_lost(lost)

    def lacks(self, partition: TopicPartition) -> list[int]:
        """The offsets of records that the log has, and that are nowhere."""
        log = self._daemons.group.logs.logs[partition]
        return [at for at, key in log.records() if (partition, key, at) not in self._records]


class ReplayableSink:
    """Of one daemon. Its worker publishes only while it has the lease, as those of Spark."""

    fingerprint = "9f3c"
    remembers = True

    def __init__(self, daemon: SimulatedDaemon, safe_until: Callable[[], float]) -> None:
        self._daemon = daemon
        self._safe_until = safe_until
        self._there: set[RangeIdentity] = set()  # by the last answers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        await anyio.sleep(self._daemon.process.world.random.uniform(0, ANSWERS_WITHIN))
        there = self._daemon.daemons.destination.has(ranges)
        self._there = self._there.difference(ranges).union(there)
        return there

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        await anyio.sleep(self._daemon.process.world.random.uniform(0, ANSWERS_WITHIN))
        return self._daemon.daemons.destination.set_aside(part)

    async def write(self, batch: Batch) -> None:
        self._require_planned(batch)
        daemon, claims = self._daemon, self._daemon.daemons.claims.of(batch)
        world, answered = daemon.process.world, anyio.Event()
        fails, daemon.refuses = daemon.refuses, False
        daemon.refused |= fails
        taken = not fails or world.random.random() < 0.5
        survives, given_up = world.random.random() < 0.5, False
        refused: OSError | DestinationWentBackError | None = None
        if not batch.is_replay:
            daemon.daemons.check_due(daemon, batch)

        def arrives() -> None:
            nonlocal refused
            if taken and (survives or not (given_up or daemon.killed)):
                try:
                    daemon.daemons.destination.take(batch, daemon.process.name)
                except (OSError, DestinationWentBackError) as error:
                    refused = error
            daemon.process.call_soon(answered.set)

        interruption, daemon.interruption = daemon.interruption, None
        while now() >= self._safe_until():
            await anyio.sleep(_LOOKS_EVERY)
        world.after(max(daemon.pace, ARRIVES_AFTER), arrives)
        try:
            if interruption is not None:
                await self._interrupted(batch, interruption)
            await answered.wait()
        except BaseException:
            given_up = True
            raise
        if refused is not None:
            daemon.refused = True
            raise refused
        if fails:
            raise OSError("no answer")
        daemon.daemons.claims.wrote(daemon, batch, claims)

    async def _interrupted(self, batch: Batch, interruption: Interruption) -> None:
        """So much of the batch is there, and then it happens."""
        daemon, world = self._daemon, self._daemon.process.world
        parts = {"planned": batch.ranges[:0], "written in part": batch.ranges[:1]}.get(
            interruption.moment, batch.ranges
        )
        daemon.daemons.destination.take(msgspec.structs.replace(batch, ranges=parts), daemon.process.name)
        if interruption.moment == "commit refused":
            loss = Loss(executed=False, kind="published plan", refusal=SYSTEM_ERROR)
            daemon.daemons.faults.lose_a_reply(daemon, loss)
        world.after(0.0, interruption.happens)
        await anyio.sleep(ARRIVES_AFTER)

    def _require_planned(self, batch: Batch) -> None:
        """A write begins: each range is planned with these bounds, by the owner, and is not known to be there."""
        daemons, name = self._daemon.daemons, self._daemon.process.name
        for part in batch.ranges:
            if (holder := daemons.claims.holder(part.topic_partition)) is not self._daemon.process:
                if daemons.world.now > self._daemon.misled_until:
                    daemons.violated(f"{name} begins to write {part.range}, which belongs to {holder}")
                continue
            plan = daemons.record(part.topic_partition).plan
            planned = plan and (int(plan.incarnation, 16), plan.epoch, plan.first, plan.until)
            if planned != part.identity[2:]:
                daemons.violated(f"{name} writes {part.identity}, and planned is {planned}")
            if batch.is_replay and part.identity in self._there and not daemons.destination.went_back:
                daemons.violated(f"{name} replays {part.identity}, which the destination has, as it said")
