"""The membership as a sink's runner uses it, without one: records plans, steps and commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.offsets.progress import Message, Progress
from kzconsumer.registry.claim_record import Plan, Spans
from kzconsumer.sinks.interface import RangeData
from kzconsumer.zookeeper.session import Lease
from tests.support.chunks import LeaseInHand


class Owned:
    """`made` are the positions of `claims` at each commit; `error` is raised by it. A test overrides the rest."""

    def __init__(
        self, owned: Iterable[Progress] = (), error: Exception | None = None, *, lease: Lease | None = None
    ) -> None:
        self.lease = lease or LeaseInHand()
        self.claims = list(owned)
        self.error = error
        self.made: list[list[int]] = []

    async def lose_recreated(self, owned: Collection[Progress]) -> None: ...

    async def plan(self, plans: Mapping[Progress, Plan]) -> Collection[Progress]:
        return list(plans)

    async def record_step(self, owned: Collection[Progress], step: str) -> Collection[Progress]:
        raise AssertionError("the sink has no steps")

    async def record_rejected(self, offsets: Mapping[Progress, Spans]) -> Collection[Progress]:
        return list(offsets)

    def require_room(self, offsets: Mapping[Progress, Spans]) -> None: ...

    async def record_contents(self, figures: Mapping[Progress, tuple[int, str]]) -> Collection[Progress]:
        return list(figures)

    async def message(self, partition: TopicPartition, offset: int) -> Message | None:
        raise AssertionError("the records are at hand")

    async def fetched(self, part: RangeData) -> RangeData:
        raise AssertionError("the records are at hand")

    async def commit(self) -> None:
        self.made.append([claim.processed for claim in self.claims])
        if self.error is not None:
            raise self.error

    async def resume_after_replay(self, progress: Progress) -> None:
        raise AssertionError("nothing was replayed")


class Nothing:
    """A replayable sink's destination that has published nothing."""

    fingerprint = "f"
    remembers = False

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return ()

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        return True
