"""The one loop that changes what this member owns.

It waits for the trigger, reads the group, computes the assignment and carries it out: release, move, claim. Waiting for
another member never delays a release; it ends on an event or a timer, and everything is read again. Between rebalances
it reconciles (`reconciler`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping
from functools import partial

import anyio

from kzconsumer.assignors import Assignor
from kzconsumer.brokers.pool import Brokers
from kzconsumer.clock import now
from kzconsumer.counters import Rebalance, RebalanceCounters, RebalanceOutcome
from kzconsumer.errors import (
    BrokersUnreachableError,
    ConnectionLostError,
    CoordinatorError,
    GroupUnreadableError,
    KzConsumerError,
    NodeExistsError,
    NotPermittedError,
    ZooKeeperError,
)
from kzconsumer.group.assignment import AssignmentChange, GroupSnapshot, compare, wanted_by
from kzconsumer.group.claim_and_release import REVOKE_DEADLINE_WITH_ORIGINALS, Claimer
from kzconsumer.group.membership import Membership, SnapshotReader
from kzconsumer.group.owned_partitions import OwnedPartitions
from kzconsumer.group.rebalance_listener import ListenerCalls
from kzconsumer.group.reconcile_rules import needs_looking
from kzconsumer.group.reconciler import Notices, Reconciler
from kzconsumer.logs.logger import facts, get_logger
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.claim_record import Blocked, ClaimRefused
from kzconsumer.registry.cluster_topics import TopicSource
from kzconsumer.registry.node_topics import OwnCluster, id_of_cluster
from kzconsumer.zookeeper.watches import Watches, outcomes, together

# What may change the assignment is one signal, with reasons. Watches, commits and timers fire it; the rebalancer waits
# for it. Events during a rebalance cause exactly one more.

# Long enough for the other events of one cause to arrive, short enough not to be noticed.
QUIET_PERIOD = 0.02
# The list of members is not waited for any longer, however often it changes.
LONGEST_QUIET_PERIOD = 1.0
MEMBERS = "members"
"""The reason for a changed list of members."""


class Calm:
    """How long the list of members has to stand still before it is acted on.

    While a group starts, every list of members moves partitions that the next list moves again, and each move costs a
    drain, a commit and a claim. So a list that has changed while it was read is not acted on (`_read_when_calm`), nor
    one that follows closely on the rebalance for another, until it has stood still for a while. After
    LONGEST_QUIET_PERIOD any list is acted on: a group that never stands still has to make progress. A single change is
    not delayed.
    """

    def __init__(self) -> None:
        self._window = 0.0
        self._ended = float("-inf")

    def window(self, now: float, reasons: Collection[str]) -> float:
        """Seconds; more for each change that follows closely on the rebalance for another one."""
        if MEMBERS not in reasons:
            return 0.0
        if now - self._ended > LONGEST_QUIET_PERIOD:
            self._window = 0.0
        else:
            self._window = min(4 * max(self._window, QUIET_PERIOD), LONGEST_QUIET_PERIOD / 4)
        return self._window

    def acted(self, now: float) -> None:
        """A rebalance has ended."""
        self._ended = now


class RebalanceTrigger:
    """Fired synchronously, any number of times; waited for by one task."""

    def __init__(self) -> None:
        self._reasons: dict[str, None] = {}
        self._event = anyio.Event()

    def fire(self, reason: str) -> None:
        self._reasons[reason] = None
        self._event.set()

    @property
    def fired(self) -> bool:
        """Whether there is a reason not yet acted on."""
        return bool(self._reasons)

    def take(self, reason: str) -> bool:
        """Whether there is this reason; it counts as acted on from now on."""
        if reason not in self._reasons:
            return False
        del self._reasons[reason]
        if not self._reasons:
            self._event = anyio.Event()
        return True

    async def wait(self, timeout: float | None) -> list[str]:
        """The reasons, after a short quiet period; none if `timeout` seconds pass without any."""
        with anyio.move_on_after(timeout):
            await self._event.wait()
        if self._reasons:
            await anyio.sleep(QUIET_PERIOD)
        reasons = list(self._reasons)
        self._reasons.clear()
        self._event = anyio.Event()
        return reasons


log = get_logger("kzconsumer.group")

FIRST_RETRY = 0.5
LONGEST_RETRY = 5.0


class Rebalancer:
    """Runs as one task of a membership. Without `keep` every change releases all partitions first."""

    def __init__(
        self,
        *,
        membership: Membership,
        reader: SnapshotReader,
        topics: TopicSource,
        brokers: Brokers,
        own_cluster: OwnCluster,
        watches: Watches,
        owned: OwnedPartitions,
        claims: Claimer,
        trigger: RebalanceTrigger,
        assignor: Assignor,
        keep: bool,
        revoke_deadline: float,
        listener: ListenerCalls,
        notices: Notices,
        reconciler: Reconciler,
        counters: RebalanceCounters,
    ) -> None:
        self._membership = membership
        self._reader = reader
        self._topics = topics
        self._brokers = brokers
        self._own_cluster = own_cluster
        self._watches = watches
        self._owned = owned
        self._claims = claims
        self._trigger = trigger
        self._assignor = assignor
        self._keep = keep
        self._revoke_deadline = revoke_deadline
        self._listener = listener
        self._reconciler = reconciler
        self._notices = notices
        self._counters = counters
        self.snapshot: GroupSnapshot | None = None
        """The group as read by the last rebalance."""
        self.assigned: Mapping[TopicPartition, ConsumerThreadId] = {}
        """The owner that the assignor computed for each partition."""
        self._failed: Mapping[TopicPartition, Blocked | ClaimRefused | KzConsumerError] = {}
        self._wanted: Mapping[TopicPartition, ConsumerThreadId] = {}
        self._calm = Calm()
        self._complete = False  # the last rebalance has ended, and nothing was blocked
        self.rebalanced_once = anyio.Event()
        self.failure = ""
        """Why the last attempt could not be completed, if it could not."""

    @property
    def misplaced(self) -> Mapping[TopicPartition, str]:
        """See `Misplaced.lasting`."""
        return self._reconciler.misplaced

    @property
    def settled(self) -> bool:
        """Whether this member owns all that it should, as far as it knows."""
        return self._complete and not self._trigger.fired

    async def run(self) -> None:
        """Run until cancelled.

        Raises SessionExpiredError, PluginError, UnfitError, OtherClusterError, NotPermittedError.
        """
        self._trigger.fire("start")
        retry = 0.0  # seconds to the next attempt; 0 when the last one was complete
        look_again = 0.0  # seconds to the next attempt after the last look that was interrupted
        while True:
            complete = False
            reasons = await self._trigger.wait(retry * random.uniform(0.8, 1.2) if retry else self._reconciler.pause)
            if retry and not reasons:
                self._watches.reread()  # the timer is for events that did not come
            try:
                complete = not (reasons or retry) or await self._attempt(reasons or ["retry"])
                if self._reconciler.due:
                    await self._look_after()
                    look_again = 0.0
                retry = 0.0 if complete else longer(retry)
            except NotPermittedError:
                raise  # waiting does not help, and meanwhile our partitions would have no owner
            except (ConnectionLostError, CoordinatorError, BrokersUnreachableError, ZooKeeperError) as error:
                self.failure = str(error)
                log.warning("rebalance interrupted", reason=str(error))
                if complete:  # a look is repeated soon, however many attempts had failed before
                    retry = look_again = longer(look_again)
                else:
                    retry = longer(retry)

    async def _attempt(self, reasons: list[str]) -> bool:
        began, counted = now(), self._counters.seconds.count
        try:
            with self._counters.attempts.one(began):
                return await self._rebalance(reasons, began)
        except BaseException:
            # Also one that the end of the session cuts: what it has released is released.
            if self._counters.seconds.count == counted:
                self._count(began, reasons, "interrupted")
            raise
        finally:
            self._calm.acted(now())

    def _count(self, began: float, reasons: list[str], outcome: RebalanceOutcome, **numbers: int) -> Rebalance:
        ended = Rebalance(
            at=time.time(),
            seconds=round(now() - began, 3),
            reasons=tuple(reasons),
            outcome=outcome,
            generation=self._listener.generation,
            **numbers,
        )
        self._counters.add(ended)
        return ended

    async def _rebalance(self, reasons: list[str], began: float) -> bool:
        """One attempt; False if it has to be repeated without waiting for an event."""
        # Read, decide, carry out. Others act between any two lines, so nothing here relies on what was read:
        # 1. The group may change once it was read. A watch fires, and another attempt follows. Until then two members
        #    may want the same partition: one gets the owner node, the claim of the other is blocked, and is made when
        #    that node goes (`_await_blocked`).
        # 2. An earlier attempt may have been interrupted. What it left is swept before `held` is compared with what is
        #    wanted, as only owner nodes with a fence of ours count as held.
        # 3. A topic may have been created again: its partitions are released first, and claimed as those of a new
        #    topic, whose offsets mean other records.
        self._complete = False
        up = await self._topics.broker_ids()
        if not up:
            self._notices.once("no broker registered", "/brokers/ids")
            self.failure = "no broker is registered"
            self._counters.attempts.failed(self.failure, began)
            self.rebalanced_once.set()
            # An event reports those that register. But none reports what is there since ZooKeeper was restored from a
            # copy, and before its first rebalance a member does not look.
            return False
        if self._own_cluster.in_doubt:  # a broker writes the id, and then registers
            self._own_cluster.require(await id_of_cluster(partial(self._watches.data, reason="brokers")))
        self._brokers.close_others(up)
        snapshot = await self._read_when_calm(self._calm.window(began, reasons))
        if snapshot is None:
            self._count(began, reasons, "unreadable")
            return False
        assigned = self._assign(snapshot)
        wanted = wanted_by(self._membership.consumer, assigned)
        await self._claims.sweep()
        recreated = await self._claims.outdated(snapshot.topics)
        if recreated:
            await self._claims.release(recreated)
        change = compare(wanted, self._owned.held, keep=self._keep or wanted == self._wanted)
        self._wanted = wanted
        self.snapshot, self.assigned = snapshot, assigned
        self._notices.idle_streams(snapshot, wanted)
        if recreated or not change.empty:
            self._listener.generation += 1
            facts()["generation"] = self._listener.generation
        most = REVOKE_DEADLINE_WITH_ORIGINALS if needs_looking(snapshot.members) else self._revoke_deadline
        self._claims.revoke_deadline = min(self._revoke_deadline, most)
        self._failed = failed = await self._carry_out(change, snapshot)
        if not self._owned.held:
            _raise_if_forbidden(failed.values())
        self._report(change, len(recreated), len(snapshot.members), began, reasons)
        await self._await_blocked(failed, snapshot)
        self._counters.attempts.succeeded()
        self.rebalanced_once.set()
        self._reconciler.rebalanced(snapshot, assigned)
        self._complete = not failed
        return self._complete

    def _report(self, change: AssignmentChange, recreated: int, members: int, began: float, reasons: list[str]) -> None:
        """Count the rebalance that has carried out the change, and log it unless it is a later one without effect.

        `recreated`: partitions of topics that were created again, which were released before it.
        """
        claimed = len(change.claim) - len(self._failed)
        numbers = {
            "members": members,
            "kept": len(change.keep),
            "moved": len(change.move),
            "released": len(change.release) + recreated,
            "claimed": claimed,
            "blocked": len(self._failed),
        }
        ended = self._count(began, reasons, "blocked" if self._failed else "done", **numbers)
        if numbers["released"] or change.move or claimed or not self.rebalanced_once.is_set():
            log.info("rebalanced", generation=ended.generation, reasons=reasons, seconds=ended.seconds, **numbers)
            log.debug(
                "partitions owned", partitions=[f"{p} by {thread}" for p, thread in sorted(self._owned.held.items())]
            )

    async def _carry_out(
        self, change: AssignmentChange, snapshot: GroupSnapshot
    ) -> dict[TopicPartition, Blocked | ClaimRefused | KzConsumerError]:
        """Releases and moves wait for the work in hand; claims do not wait for them. Returns the claims that failed."""
        # A new partition does not wait for the work that is in hand on others. Only where the same one is released and
        # claimed (all are, as in the original consumer) does the claim come second: its own node would block it.
        blocked = self._still_blocked(change.claim)
        free = {partition: thread for partition, thread in change.claim.items() if partition not in blocked}
        if not free.keys().isdisjoint(change.release):
            await self._claims.release(change.release)
            return blocked | await self._claims.open(free, snapshot.topics)
        claiming, *settling = await outcomes(
            [
                self._claims.open(free, snapshot.topics),
                self._claims.release(change.release),
                self._claims.move(change.move),
            ]
        )
        for error in (claiming, *settling):
            if isinstance(error, KzConsumerError):
                raise error
        assert isinstance(claiming, dict)
        return blocked | claiming

    def _still_blocked(
        self, wanted: Mapping[TopicPartition, ConsumerThreadId]
    ) -> dict[TopicPartition, Blocked | ClaimRefused | KzConsumerError]:
        """Claims that are still blocked by the same owner node; the other nodes are no longer watched."""
        still: dict[TopicPartition, Blocked | ClaimRefused | KzConsumerError] = {}
        for partition, why in self._failed.items():
            if not isinstance(why, Blocked):
                continue
            if partition in wanted and self._watches.still_there(why.path):
                still[partition] = why
            else:
                self._watches.forget(why.path)
        return still

    async def _look_after(self) -> None:
        """Reconcile. While a rebalance is due our own claims are left out: they may differ because of it."""
        self._watches.reread()
        snapshot = None if self._trigger.fired else await self._read()
        expected = None
        if snapshot is not None:
            wanted = wanted_by(self._membership.consumer, self._assign(snapshot))
            expected = {partition: thread for partition, thread in wanted.items() if partition not in self._failed}
        if await self._reconciler.look(expected):
            self._trigger.fire("reconcile")

    def _assign(self, snapshot: GroupSnapshot) -> Mapping[TopicPartition, ConsumerThreadId]:
        """The assignment of the group: it follows from the snapshot, so it is computed once for each."""
        return self.assigned if snapshot == self.snapshot else self._assignor(snapshot.context())

    async def _read_when_calm(self, window: float) -> GroupSnapshot | None:
        """The group whose list of members has not changed for `window` seconds, nor while it was read."""
        until = now() + LONGEST_QUIET_PERIOD
        while True:
            snapshot = await self._read()
            if snapshot is None or now() >= until:
                return snapshot
            await anyio.sleep(min(window, until - now()))
            if not self._trigger.take(MEMBERS):
                return snapshot
            # Each change has every member read the whole list again: the longer it goes on, the less often.
            window = min(max(2 * window, QUIET_PERIOD), LONGEST_QUIET_PERIOD / 4)

    async def _read(self) -> GroupSnapshot | None:
        """The group as it is; None if it cannot be read, so that no assignment can be computed."""
        try:
            members = await self._reader.members()
            if self._membership.consumer not in members:
                log.warning("registration deleted, registering again", consumer=self._membership.consumer)
                try:
                    await self._membership.register()
                except NodeExistsError:
                    return None
                members = await self._reader.members()
            return await self._reader.read(members)
        except GroupUnreadableError as error:
            self._notices.once(error.problem, error.path, error.reason)
            self.failure = f"{error.path}: {error.problem}"
            return None

    async def _await_blocked(
        self, failed: Mapping[TopicPartition, Blocked | ClaimRefused | KzConsumerError], snapshot: GroupSnapshot
    ) -> None:
        """Watch the owners that block claims, and log each reason for a failed claim once."""
        blocked = {partition: why for partition, why in failed.items() if isinstance(why, Blocked)}
        self._notices.blocked(now(), blocked, snapshot.members)
        refused = {partition: _reason(why) for partition, why in failed.items() if not isinstance(why, Blocked)}
        self._notices.refused(now(), refused)
        await together([self._await_owner(partition, why) for partition, why in blocked.items()])
        for partition, why in failed.items():
            if isinstance(why, ClaimRefused | NotPermittedError):
                self._notices.once("partition not consumed", why.path, refused[partition], error=True)
            elif not isinstance(why, Blocked):
                log.warning("claim failed", **partition._asdict(), reason=str(why))

    async def _await_owner(self, partition: TopicPartition, blocked: Blocked) -> None:
        reason = f"owner of {partition}"
        if await self._watches.blocking(blocked.path, reason) is None:
            self._trigger.fire(reason)


def _raise_if_forbidden(failed: Collection[Blocked | ClaimRefused | KzConsumerError]) -> None:
    """Raises NotPermittedError if ACLs refuse all claims.

    This member would own nothing, and keep its partitions from members of the right user.
    """
    errors = [why for why in failed if isinstance(why, NotPermittedError)]
    if errors and len(errors) == len(failed):
        raise errors[0]


def _reason(why: ClaimRefused | KzConsumerError) -> str:
    """Without the path, so that partitions with the same reason can be reported together."""
    if isinstance(why, ClaimRefused):
        return why.reason
    return str(why).removeprefix(f"{why.path}: ") if isinstance(why, ZooKeeperError) else str(why)


def longer(retry: float) -> float:
    """Seconds to the next attempt after an incomplete one."""
    return min(max(retry * 2, FIRST_RETRY), LONGEST_RETRY)
