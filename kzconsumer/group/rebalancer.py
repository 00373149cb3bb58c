"""The one loop that changes what this member owns.

Owns what is blocked. It waits for the trigger, reads the group, computes, and carries out:
release, move, claim. A wait for another member never holds up a release, and ends on events and a timer; each end reads
everything anew. Nobody else opens or releases claims.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import anyio
import structlog

from kzconsumer.assignors.interface import Assignor
from kzconsumer.clock import now
from kzconsumer.errors import ConnectionLost, KzConsumerError, NodeExists, ZooKeeperError
from kzconsumer.group.blocking import blocked_by
from kzconsumer.group.claims import REVOKE_DEADLINE, REVOKE_DEADLINE_WITH_ORIGINALS, Claims
from kzconsumer.group.membership import Membership
from kzconsumer.group.ownership_plan import OwnershipPlan, assignment, compare, wanted_by
from kzconsumer.group.poke import LOOK_INTERVAL, Pokes, needs_looking
from kzconsumer.group.rebalance_listener import ListenerCalls
from kzconsumer.group.rebalance_trigger import RebalanceTrigger
from kzconsumer.group.snapshot import GroupSnapshot, needs_all_topics, subscribed_topics
from kzconsumer.group.subscription import has_wildcard, streams_by_topic
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.zookeeper import paths, znodes
from kzconsumer.zookeeper.consumer_registry import ConsumerRegistry
from kzconsumer.zookeeper.ownership import Blocked, Refused
from kzconsumer.zookeeper.round_trips import outcomes
from kzconsumer.zookeeper.topic_registry import TopicRegistry
from kzconsumer.zookeeper.watches import Watches

log = structlog.get_logger("kzconsumer.group")

FIRST_RETRY = 0.5
LONGEST_RETRY = 5.0

# Seconds after which a claim that is still blocked is told as a degradation.
DEGRADED_AFTER = 5.0

# What to do about a member whose registration cannot be read: `wait` until it leaves, or compute without it.
IGNORE = "ignore"


class Rebalancer:
    """Runs as one task of a membership."""

    def __init__(
        self,
        *,
        membership: Membership,
        consumers: ConsumerRegistry,
        topics: TopicRegistry,
        watches: Watches,
        claims: Claims,
        trigger: RebalanceTrigger,
        assignor_name: str,
        assignor: Assignor,
        listener: ListenerCalls,
        unreadable: str,
    ) -> None:
        self._membership = membership
        self._consumers = consumers
        self._topics = topics
        self._watches = watches
        self._claims = claims
        self._trigger = trigger
        self._assignor_name = assignor_name
        self._assignor = assignor
        self._listener = listener
        self._unreadable = unreadable
        self._blocked: dict[TopicPartition, tuple[Blocked, float]] = {}  # since when
        self._degraded: set[TopicPartition] = set()
        self._said: set[str] = set()
        self._topics_watched: set[str] = set()
        self._with_originals = False
        self._pokes = Pokes(membership.consumer)
        self.rebalanced_once = anyio.Event()

    def __repr__(self) -> str:
        return f"<Rebalancer generation {self._listener.generation} {self._claims} {len(self._blocked)} blocked>"

    async def run(self) -> None:
        """Until cancelled. Raises SessionExpired, PluginError."""
        self._trigger.fire("start")
        retry = FIRST_RETRY
        timeout: float | None = None
        while True:
            reasons = await self._trigger.wait(timeout)
            try:
                done = await self._rebalance(reasons)
            except (ConnectionLost, ZooKeeperError) as error:
                log.warning("rebalance interrupted", reason=str(error))
                done = False
            if done:
                # Original members may get stuck without any event: looked for as long as there are any.
                retry, timeout = FIRST_RETRY, LOOK_INTERVAL if self._with_originals else None
            else:
                self._watches.reread()  # what the timer is for: an event that did not come
                timeout = retry * random.uniform(0.8, 1.2)
                retry = min(retry * 2, LONGEST_RETRY)

    async def _rebalance(self, reasons: list[str]) -> bool:
        """One attempt; False when it has to be repeated though no event may come."""
        began = now()
        if not await self._topics.broker_ids():
            self._say_once("no broker is registered: waiting for one", "/brokers/ids")
            self.rebalanced_once.set()
            return True
        snapshot = await self._read()
        if snapshot is None:
            return False
        assigned = assignment(self._assignor_name, self._assignor, snapshot.context())
        wanted = wanted_by(self._membership.consumer, assigned)
        await self._claims.sweep()
        recreated = self._claims.outdated(snapshot.topics)
        if recreated:
            await self._claims.release(recreated)
        plan = compare(wanted, self._claims.held)
        self._tell_idle_streams(snapshot, wanted)
        if not plan.changes_nothing:
            self._listener.generation += 1
        self._with_originals = needs_looking(snapshot.members)
        self._claims.revoke_deadline = REVOKE_DEADLINE_WITH_ORIGINALS if self._with_originals else REVOKE_DEADLINE
        failed = await self._carry_out(plan, snapshot)
        claimed = len(plan.claim) - len(failed)
        if plan.release or plan.move or claimed or not self.rebalanced_once.is_set():
            log.info(
                "rebalanced",
                generation=self._listener.generation,
                reasons=reasons,
                members=len(snapshot.members),
                kept=len(plan.keep),
                moved=len(plan.move),
                released=len(plan.release),
                claimed=claimed,
                blocked=len(failed),
                seconds=round(now() - began, 3),
            )
            log.debug("owns", partitions=[f"{p} by {thread}" for p, thread in sorted(self._claims.held.items())])
        await self._await_blocked(failed, snapshot)
        self.rebalanced_once.set()
        if self._with_originals:
            await self._look_after_originals(snapshot, assigned)
        return not failed

    async def _carry_out(
        self, plan: OwnershipPlan, snapshot: GroupSnapshot
    ) -> dict[TopicPartition, Blocked | Refused | KzConsumerError]:
        """Releases and moves wait for the work in hand to end; claims do not wait for them. Returns what failed."""
        blocked = self._still_blocked(plan.claim)
        claiming, *settling = await outcomes(
            [
                self._claims.open({p: t for p, t in plan.claim.items() if p not in blocked}, snapshot.topics),
                self._claims.release(plan.release),
                self._claims.move(plan.move),
            ]
        )
        for error in (claiming, *settling):
            if isinstance(error, KzConsumerError):
                raise error
        assert isinstance(claiming, dict)
        return blocked | claiming

    def _still_blocked(
        self, wanted: Mapping[TopicPartition, ConsumerThreadId]
    ) -> dict[TopicPartition, Blocked | Refused | KzConsumerError]:
        """Claims that would meet the same owner node again; to the others' nodes nobody listens any more."""
        still: dict[TopicPartition, Blocked | Refused | KzConsumerError] = {}
        for partition, (blocked, _) in self._blocked.items():
            if partition in wanted and self._watches.unchanged(blocked.path):
                still[partition] = blocked
            else:
                self._watches.forget(blocked.path)
        return still

    async def _look_after_originals(
        self, snapshot: GroupSnapshot, assigned: Mapping[TopicPartition, ConsumerThreadId]
    ) -> None:
        """Poke original members that gave up: they own nothing and look again only when the group changes."""
        theirs = [p for p, thread in assigned.items() if not snapshot.members[thread.consumer].ours]
        owned = await self._claims.owned_by_anybody(theirs)
        poke = self._pokes.look(now(), snapshot.members, assigned, owned)
        if poke is not None:
            await self._consumers.poke(self._membership.consumer, poke.number)
            stuck = {str(partition): member for partition, member in poke.without_owner.items()}
            log.warning("poked original members that own nothing of theirs", number=poke.number, without_owner=stuck)

    async def _read(self) -> GroupSnapshot | None:
        """The group as it is; None when a member cannot be read, since what it owns cannot be computed then."""
        nodes = await self._consumers.members()
        if self._membership.consumer not in nodes:
            log.warning("our registration is gone, registering again", consumer=self._membership.consumer)
            try:
                await self._membership.register()
            except NodeExists:
                return None
            nodes = await self._consumers.members()
        members = {}
        for consumer, node in nodes.items():
            path = self._membership.paths.member(consumer)
            try:
                members[consumer] = znodes.decode_registration(node.data)
            except ValueError as error:
                if self._unreadable == IGNORE:
                    self._say_once("a member's registration is unreadable and ignored", path, error)
                    continue
                self._say_once("a member's registration is unreadable: the group waits until it leaves", path, error)
                return None
        all_topics = tuple(await self._topics.all_topics()) if needs_all_topics(members) else ()
        try:
            names = subscribed_topics(members, all_topics)
        except ValueError as error:
            self._say_once("a member's pattern cannot be used", self._membership.paths.ids, error)
            return None
        self._forget_topics(names)
        return GroupSnapshot(members, all_topics, await self._topics.topics(names))

    def _forget_topics(self, names: list[str]) -> None:
        """Nobody subscribes to the others any more: their changes are nothing to us."""
        for name in self._topics_watched.difference(names):
            self._watches.forget(paths.topic(name))
        self._topics_watched = set(names)

    async def _await_blocked(
        self, failed: Mapping[TopicPartition, Blocked | Refused | KzConsumerError], snapshot: GroupSnapshot
    ) -> None:
        """Have the end of each blocking owner wake us; say once what is in the way, and once that nothing is."""
        was_degraded = bool(self._degraded)
        before, self._blocked = self._blocked, {}
        for partition, why in failed.items():
            if isinstance(why, Blocked):
                known, since = before.get(partition, (None, 0.0))
                self._blocked[partition] = why, since if known == why else now()
                self._tell_degraded(partition, why, snapshot)
                if await self._watches.exists(why.path, f"owner of {partition}") is None:
                    self._trigger.fire(f"owner of {partition}")
            elif isinstance(why, Refused):
                self._say_once("partition is not consumed", why.path, why.reason)
            else:
                log.warning("claim failed", partition=str(partition), reason=str(why))
        self._degraded.intersection_update(self._blocked)
        if was_degraded and not self._degraded:
            log.info("no longer degraded")

    def _tell_degraded(self, partition: TopicPartition, blocked: Blocked, snapshot: GroupSnapshot) -> None:
        """An ordinary hand-over takes a moment; what stays blocked for longer is told, once."""
        _, since = self._blocked[partition]
        if partition not in self._degraded and now() - since >= DEGRADED_AFTER:
            self._degraded.add(partition)
            reason = blocked_by(blocked, snapshot.members).value
            log.warning("degraded", partition=str(partition), path=blocked.path, owner=blocked.owner, blocked_by=reason)

    def _tell_idle_streams(self, snapshot: GroupSnapshot, wanted: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        registration = self._membership.registration
        if has_wildcard(registration):
            ((pattern, streams),) = registration.subscription.items()
            if not streams_by_topic(registration, snapshot.all_topics):
                self._say_once("no topic is allowed by the list: waiting for one", f"{registration.pattern} {pattern}")
                return
            idle = set(range(streams)).difference(thread.thread for thread in wanted.values())
            for number in sorted(idle):
                self._say_once("stream has no partition", f"stream {number}")
            return
        busy = {(partition.topic, thread.thread) for partition, thread in wanted.items()}
        for topic, streams in registration.subscription.items():
            if topic not in snapshot.topics:
                self._say_once("topic does not exist: waiting for it", f"/brokers/topics/{topic}")
                continue
            for number in range(streams):
                if (topic, number) not in busy:
                    self._say_once("stream has no partition", f"{topic} stream {number}")

    def _say_once(self, event: str, about: str, reason: object = None) -> None:
        if f"{event} {about}" not in self._said:
            self._said.add(f"{event} {about}")
            log.warning(event, about=about, **({"reason": str(reason)} if reason else {}))
