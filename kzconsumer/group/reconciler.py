"""Finds what no event reports, between rebalances: partitions without owner, nodes without a claim, stuck members.

Only the rebalancer's loop calls it. It repairs our own claims, nudges original members, and logs the rest.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import TypeVar

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.clock import now
from kzconsumer.errors import UnfitError
from kzconsumer.group.assignment import GroupSnapshot, wanted_by
from kzconsumer.group.fitness import Fitness
from kzconsumer.group.membership import ConsumerRegistry
from kzconsumer.group.owned_partitions import OwnedPartitions
from kzconsumer.group.reconcile_rules import (
    BACKOFF,
    LOOK_INTERVAL,
    Difference,
    Differences,
    Misplaced,
    OriginalMemberNudges,
    Unowned,
    What,
    needs_looking,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.storage import ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import Blocked, BlockedBy, blocked_by
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.group_records import Registration, has_wildcard, streams_by_topic
from kzconsumer.zookeeper.session import ZooKeeperSession

log = get_logger("kzconsumer.group")

# Seconds after which a claim that is still blocked is reported: an ordinary hand-over takes a moment.
DEGRADED_AFTER = 5.0


W = TypeVar("W")


def _since(
    before: Mapping[TopicPartition, tuple[W, float]], present: Mapping[TopicPartition, W], now: float
) -> dict[TopicPartition, tuple[W, float]]:
    """Each reason of the present, with the time since when it has been the same."""
    return {p: (why, before[p][1] if p in before and before[p][0] == why else now) for p, why in present.items()}


def _lasting(reasons: Mapping[TopicPartition, tuple[W, float]], now: float) -> dict[TopicPartition, W]:
    return {p: why for p, (why, since) in reasons.items() if now - since >= DEGRADED_AFTER}


class Notices:
    """The lasting conditions of one membership: each is logged once, not at every attempt."""

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._logged: set[str] = set()
        self._blocked: dict[TopicPartition, tuple[Blocked, float]] = {}  # since when
        self._refused: dict[TopicPartition, tuple[str, float]] = {}  # the same
        self._degraded: set[TopicPartition] = set()

    def once(self, event: str, about: str, reason: object = None, *, error: bool = False, **more: str) -> None:
        if f"{event} {about}" not in self._logged:
            self._logged.add(f"{event} {about}")
            report = log.error if error else log.warning
            report(event, about=about, **more, **({"reason": str(reason)} if reason else {}))

    def blocked(self, now: float, blocked: Mapping[TopicPartition, Blocked], members: Container[str]) -> None:
        """`blocked` has all claims that are blocked at the moment, and by what."""
        self._blocked = _since(self._blocked, blocked, now)
        for partition, (why, since) in self._blocked.items():
            if partition not in self._degraded and now - since >= DEGRADED_AFTER:
                self._degraded.add(partition)
                log.warning(
                    "degraded",
                    **partition._asdict(),
                    path=why.path,
                    owner=why.owner,
                    blocked_by=blocked_by(why, members).value,
                )
        if self._degraded:
            self._degraded.intersection_update(self._blocked)
            if not self._degraded:
                log.info("no longer degraded")

    def refused(self, now: float, refused: Mapping[TopicPartition, str]) -> None:
        """`refused` has all claims that no owner node blocks, and that fail at the moment, with the reason."""
        self._refused = _since(self._refused, refused, now)

    def lasting_refusals(self, now: float) -> dict[TopicPartition, str]:
        """The claims that have failed for DEGRADED_AFTER."""
        return _lasting(self._refused, now)

    def lasting(self, now: float) -> dict[TopicPartition, Blocked]:
        """The claims that have been blocked for DEGRADED_AFTER."""
        return _lasting(self._blocked, now)

    def idle_streams(self, snapshot: GroupSnapshot, wanted: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        """Report streams that get no partition, and topics that do not exist."""
        if has_wildcard(self._registration):
            ((pattern, streams),) = self._registration.subscription.items()
            if not streams_by_topic(self._registration, snapshot.all_topics):
                about = f"{self._registration.pattern} {pattern}"
                self.once("no topic matches the list", about)
                return
            idle = set(range(streams)).difference(thread.thread for thread in wanted.values())
            for number in sorted(idle):
                self.once("stream has no partition", f"stream {number}")
            return
        busy = {(partition.topic, thread.thread) for partition, thread in wanted.items()}
        for topic, streams in self._registration.subscription.items():
            if topic not in snapshot.topics:
                self.once("topic does not exist", f"/brokers/topics/{topic}")
                continue
            for number in range(streams):
                if (topic, number) not in busy:
                    self.once("stream has no partition", f"{topic} stream {number}")


# Owner nodes of other members read at one look, so that its cost does not grow with the group.
OTHERS_AT_ONCE = 32


class Reconciler:
    """The reconciler of one membership. `interval` and `unowned_alarm` are in seconds."""

    def __init__(
        self,
        *,
        session: ZooKeeperSession,
        consumer: str,
        consumers: ConsumerRegistry,
        owners: OwnerRegistry,
        storage: ZooKeeperOffsetStorage,
        owned: OwnedPartitions,
        leaders: Leaders,
        notices: Notices,
        interval: float,
        unowned_alarm: float,
    ) -> None:
        self._session = session
        self._consumer = consumer
        self._consumers = consumers
        self._owners = owners
        self._storage = storage
        self._owned = owned
        self._leaders = leaders
        self._notices = notices
        self._interval = interval
        self._snapshot: GroupSnapshot | None = None
        self._assigned: Mapping[TopicPartition, ConsumerThreadId] = {}
        self._nudges = OriginalMemberNudges(consumer)
        self._unowned = Unowned(unowned_alarm)
        self._misplaced = Misplaced(unowned_alarm)
        self._differences = Differences()
        self._fitness = Fitness(session.timeout)
        self._others_seen = 0
        self._next_look = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next look; there is none before the first rebalance."""
        return self._interval if self._snapshot is None else max(self._next_look - now(), 0.0)

    @property
    def misplaced(self) -> Mapping[TopicPartition, str]:
        """See `Misplaced.lasting`."""
        return self._misplaced.lasting

    @property
    def due(self) -> bool:
        return self._snapshot is not None and now() >= self._next_look

    def rebalanced(self, snapshot: GroupSnapshot, assigned: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        """The group and its assignment, as the rebalancer has just read them."""
        at = now() + self._until_next(snapshot)
        self._next_look = at if self._snapshot is None else min(self._next_look, at)
        if assigned != self._assigned:
            self._misplaced.forget()
        self._snapshot, self._assigned = snapshot, assigned

    async def look(self, expected: Mapping[TopicPartition, ConsumerThreadId] | None) -> bool:
        """Compare what is expected, what ZooKeeper has and what is fetched; True if a rebalance is needed.

        `expected` is our part of the assignment without blocked partitions; None while a rebalance is due: then our own
        claims are not checked. Raises UnfitError if this member should leave its partitions to others.
        """
        snapshot = self._snapshot
        assert snapshot is not None
        await self._session.sync()
        is_first = self._consumer == min((c for c, member in snapshot.members.items() if member.ours), default=None)
        mine = self._assigned if is_first else wanted_by(self._consumer, self._assigned)
        if is_first or needs_looking(snapshot.members):
            owned = await self._owners.owned(snapshot.topics)
        else:  # in a large group the owners of others would be most of what a member reads
            held = self._owned.held.keys()
            owned = {*held, *await self._owners.standing(sorted((mine.keys() | self._unowned.reported) - held))}
        self._report_unowned(mine, owned)
        await self._nudge(snapshot, owned)
        await self._leave_if_unfit(snapshot)
        confirmed = [] if expected is None else await self._reconcile(snapshot, expected)
        self._next_look = now() + self._until_next(snapshot)
        return any(difference.what is not What.UNFETCHED for difference in confirmed)

    def _until_next(self, snapshot: GroupSnapshot) -> float:
        if self._differences.unconfirmed:
            return BACKOFF
        # Original members get stuck without any event.
        seconds = min(self._interval, LOOK_INTERVAL) if needs_looking(snapshot.members) else self._interval
        return seconds * random.uniform(0.8, 1.2)

    async def _reconcile(
        self, snapshot: GroupSnapshot, expected: Mapping[TopicPartition, ConsumerThreadId]
    ) -> list[Difference]:
        # What no event reports:
        # - An owner node of ours that is missing, or another session's: somebody has deleted it. Its partition is
        #   closed at once (`verify`), as its next owner may be reading already.
        # - An owner node of our session without a partition of ours, a partition that is not fetched, an assignment
        #   that is not carried out: each may be a change under way. It is repaired if it is still there after BACKOFF.
        await self._owned.verify()
        held = self._owned.held
        seen = {Difference(What.STRAY, partition) for partition in await self._strays(snapshot)}
        seen.update(Difference(What.UNFETCHED, partition) for partition in self._owned.unfetched())
        if expected != held:
            seen.add(Difference(What.ASSIGNMENT))
        confirmed = self._differences.confirmed(now(), seen)
        for difference in confirmed:
            log.warning("reconciled", difference=str(difference))
            if difference.partition is not None:
                self._owned.repair(difference.partition)
        return confirmed

    async def _strays(self, snapshot: GroupSnapshot) -> Iterable[TopicPartition]:
        """Owner nodes of our session among the next few partitions of others; nodes without a member are reported.

        What was suspected by the last look is read again: a stray counts only if it is seen twice.
        """
        held = self._owned.held
        others = sorted(partition for partition in self._assigned if partition not in held)
        first = self._others_seen if self._others_seen < len(others) else 0
        part = others[first : first + OTHERS_AT_ONCE]
        self._others_seen = first + len(part)
        again = sorted(self._differences.suspected.intersection(others).difference(part))
        standing = await self._owners.standing([*part, *again])
        self._compare(snapshot, [*part, *again], {partition: found.owner for partition, found in standing.items()})
        strays = []
        for partition, found in standing.items():
            if found.ephemeral_owner == self._session.id:
                strays.append(partition)
            elif (why := blocked_by(found, snapshot.members)) is not BlockedBy.LIVE_MEMBER:
                self._notices.once("owner node of no member", found.path, why.value, owner=found.owner)
        return strays

    def _compare(
        self, snapshot: GroupSnapshot, partitions: Sequence[TopicPartition], owners: Mapping[TopicPartition, str]
    ) -> None:
        """With the assignment. If members run different assignors, each may own all that it wants, and others nothing.

        What this member cannot claim is blocked, and reported as that. An owner without a thread is of a client that
        assigns partitions by rules of its own.
        """
        before, wrong = self._misplaced.lasting, {}
        for each in partitions:
            thread, owner = self._assigned[each], owners.get(each, "")
            if thread.consumer != self._consumer and owner != str(thread) and owner not in snapshot.members:
                wrong[each] = owner
        self._misplaced.look(now(), partitions, wrong)
        if more := {str(p): owner for p, owner in self._misplaced.lasting.items() if owner and p not in before}:
            log.warning("partitions have another owner than is assigned", partitions=more)

    def _report_unowned(
        self, mine: Mapping[TopicPartition, ConsumerThreadId], owned: Collection[TopicPartition]
    ) -> None:
        """Each member reports its own partitions, the first member those of all."""
        raised, over = self._unowned.look(now(), mine, owned)
        if raised:
            log.error("partitions without owner", partitions={str(p): self._assigned[p].consumer for p in raised})
        if again := [str(partition) for partition in over if partition in owned]:
            log.info("partitions have an owner again", partitions=again)
        if others := [str(partition) for partition in over if partition not in owned]:
            # Their topic was deleted, or another member should own them.
            log.info("unowned partitions are assigned to other members", partitions=others)

    async def _nudge(self, snapshot: GroupSnapshot, owned: set[TopicPartition]) -> None:
        """Original members that gave up own nothing, and try again only when the group changes."""
        nudge = self._nudges.look(now(), snapshot.members, self._assigned, owned)
        if nudge is not None:
            await self._consumers.nudge(self._consumer, nudge.number)
            stuck = {str(partition): member for partition, member in nudge.without_owner.items()}
            log.warning("original members nudged", number=nudge.number, without_owner=stuck)

    async def _leave_if_unfit(self, snapshot: GroupSnapshot) -> None:
        since = self._leaders.unreachable_since
        if not self._fitness.doubtful(now() - since if since is not None and self._owned.held else 0.0):
            return
        others = (await self._owners.owned(snapshot.topics)).difference(self._owned.held)
        if self._fitness.others_advance(await self._storage.last_writes(others)):
            raise UnfitError("no broker answers, while other members go on")
