"""The promises to a group, checked at every transaction and at every record handed out.

`Promises` owns what was handed out, processed and stored, the true owners, and the list of violations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.paths import topic as topic_path
from kzconsumer.settings.sections import GroupSettings
from kzconsumer.settings.value_readers import LARGEST
from kzconsumer.zookeeper.operations import Check, Create, Delete, Operation, SetData
from tests.support.members import sessions_of
from tests.support.simulated.ensemble import OPERATOR, Ensemble, Peer
from tests.support.simulated.member import GROUP, Handed, Member
from tests.support.simulated.network import SLOW, Line, SimulatedNetwork
from tests.support.simulated.partition_logs import PartitionLogs
from tests.support.simulated.scene import STOP_DEADLINE
from tests.support.simulated.znode_tree import shown

TRACE = 4000
"""Log lines and transactions that are kept for a failure's report."""
GRACE = 4.0
"""Seconds in which an owner has to notice a foreign change of its partition: more than half a session timeout."""
REVOKE_DEADLINE = GroupSettings(id="g").revoke_deadline
COMMIT_PATIENCE = 1.0
"""Seconds that a member without ZooKeeper gives its final commit."""

NEVER_LOGGED = frozenset(
    ("observing the member failed", "callback failed", "session failed", "reading from ZooKeeper failed")
)
"""Events of an exception that nobody expected, and that was not raised."""
CHANGED = "offset changed by a client that does not own the partition, restored"


class Promises:
    """See the module. After `rest`, nothing is checked any more."""

    def __init__(
        self,
        ensemble: Ensemble,
        network: SimulatedNetwork,
        logs: PartitionLogs,
        members: list[Member],
        reset: str,
    ) -> None:
        self.world = ensemble.world
        self.ensemble = ensemble
        self.network = network
        self.logs = logs
        self.members = members
        self.reset = reset
        self.paths = GroupPaths(GROUP)
        self.violations: list[str] = []
        self.trace: deque[str] = deque(maxlen=TRACE)
        self.watching = True
        self.offsets_changed = False
        """A foreign program has set one."""
        self.unrecorded: set[TopicPartition] = set()
        """A foreign program has deleted their claim records: the next one's version may be that of an open claim."""
        self.observers: list[Callable[[Member, TopicPartition], None]] = []
        """Called when an application has received records."""
        self._handed: dict[TopicPartition, dict[int, Handed]] = {}
        self.finished: dict[TopicPartition, set[int]] = {}
        self._start: dict[TopicPartition, int] = {}
        self._copied: dict[TopicPartition, int] = {}  # what an owner has given to the coordinator last
        self._stored: dict[TopicPartition, int] = {}
        self._claims: dict[TopicPartition, tuple[int, int]] = {}  # the owner node's czxid and session
        self._unclean: set[int] = set()  # claims that were ended by other programs
        self._held_back: set[int] = set()  # claims of which a record that was not done in time was redelivered
        self._disturbed: dict[TopicPartition, float] = {}
        self._late_until: dict[Member, float] = {}  # see `late`
        self._restored_until = 0.0
        self._kept: dict[TopicPartition, int] = {}  # sessions that knew the offset when the nodes were lost
        self._unregistered: dict[str, float] = {}  # until when a member may claim whose id an operator has deleted
        self._meddled: set[TopicPartition] = set()  # a foreign program set the offset last
        self._sought: dict[TopicPartition, dict[int, float]] = {}  # where applications sought to, and when
        self._cut: set[TopicPartition] = set()  # the log was cut off: positions may move back
        self._former: dict[TopicPartition, set[int]] = {}  # processed records that the log has lost
        self._floor: dict[TopicPartition, int] = {}  # nobody has to read what is before
        self._overtaken: set[TopicPartition] = set()  # retention may have taken a position, and the log's end followed
        ensemble.committed.append(self._committed)

    def disturb(self, partition: TopicPartition, seconds: float = GRACE) -> None:
        """A foreign program changes the partition: its owner may appear wrong for so long."""
        # A ZooKeeper that was restored excuses longer.
        noticed = max([self.world.now, *self._late_until.values()])
        self._disturbed[partition] = max(self._disturbed.get(partition, 0.0), noticed + seconds)
        if (claim := self._claims.get(partition)) is not None:
            self._unclean.add(claim[0])

    def late(self, member: Member, until: float) -> None:
        """It may learn only then what others change: it does not run, nothing arrives, or ZooKeeper postpones the
        request by which it would learn what it has missed, which it repeats a second later."""
        self._late_until[member] = until = max(self._late_until.get(member, 0.0), until)
        for partition, excused in self._disturbed.items():
            if excused > self.world.now:
                self._disturbed[partition] = max(excused, until + GRACE)
        if (excused := self._unregistered.get(member.consumer, 0.0)) > self.world.now:
            self._unregistered[member.consumer] = max(excused, until + GRACE)

    def may_go_to(self, partition: TopicPartition, offset: int) -> None:
        """An application is about to seek: its owner may store this, whatever was processed."""
        self._sought.setdefault(partition, {})[offset] = self.world.now

    def gone(self, partition: TopicPartition, offset: int) -> None:
        """Retention deletes what is before this offset: that need not be read."""
        self.finished.setdefault(partition, set()).update(range(offset))
        if self.reset == LARGEST:
            self._overtaken.add(partition)

    def compacted(self, partition: TopicPartition, first: int, until: int) -> None:
        """Compaction has removed these: they need not be read."""
        self.finished.setdefault(partition, set()).update(range(first, until))

    @property
    def read(self) -> list[tuple[TopicPartition, int]]:
        """The partitions that have been read, and the offset behind the last record that was processed."""
        return [
            (partition, max(each) + 1)
            for partition, each in self.finished.items()
            if each and partition in self.logs.logs
        ]

    def cut_off(self, partition: TopicPartition, end: int) -> None:
        """The log was cut off there: what comes from there on are other records, and all of them have to be read."""
        self._cut.add(partition)
        first = max(end, self._floor.get(partition, 0))
        finished = self.finished.setdefault(partition, set())
        lost = {offset for offset in finished if offset >= first}
        self._former.setdefault(partition, set()).update(lost)
        finished -= lost
        for offset in [each for each in self._handed.get(partition, {}) if each >= end]:
            del self._handed[partition][offset]
        if self.reset == LARGEST:
            self._overtaken.add(partition)

    def recreated(self, partitions: Iterable[TopicPartition]) -> None:
        """Their topic was deleted and is about to be made again: nothing that was so far counts."""
        for partition in partitions:
            for known in (
                self._handed, self.finished, self._start, self._stored, self._sought, self._former, self._floor,
                self._kept,
            ):  # fmt: skip
                known.pop(partition, None)
            self._meddled.discard(partition)
            self._overtaken.discard(partition)
            self._cut.discard(partition)

    def unregistered(self, member: Member) -> None:
        """An operator deletes its id: it may be claiming partitions, and learns of that afterwards."""
        self._unregistered[member.consumer] = max(self.world.now, self._late_until.get(member, 0.0)) + GRACE

    @property
    def owners(self) -> dict[TopicPartition, int]:
        """The sessions that hold owner nodes."""
        return {partition: session for partition, (_, session) in self._claims.items()}

    def restored(self, until: float) -> None:
        """ZooKeeper was restored from a copy: what was stored since may be redelivered, and is committed again when the
        next offset is. Until then members may rely on claims that are not in the copy, and even commit by them:
        versions of nodes begin again, so that another member's claim may have the same ones.

        A session that goes on knows what it had stored: if no other one has claimed the partition since, it continues
        there, whatever the reset policy is."""
        self._restored_until = until
        self.offsets_changed = True
        claimed = {each: session for each, (_, session) in self._claims.items() if each in self._stored}
        self._kept = {each: session for each, session in claimed.items() if self._knows(session, each)}
        for claim, _ in self._claims.values():
            self._unclean.add(claim)
        self._claims.clear()
        self._stored.clear()
        self._handed.clear()
        for path, node in self.ensemble.tree.nodes.items():
            kind, partition = self._about(path)
            if kind == "owners":
                self._claims[partition] = node.czxid, node.owner
                self._unclean.add(node.czxid)
            elif kind == "offsets":
                self._stored[partition] = int(node.data)
        for partition in self.logs.partitions:
            self._disturbed[partition] = until
            self._meddled.add(partition)

    def _knows(self, session: int, partition: TopicPartition) -> bool:
        """Whether it has had the reply to its claim, and with that what is stored."""
        process = self.network.processes.get(session)
        return any(member.process is process and partition in member.claims for member in self.members)

    def stored_by_owner(self, partition: TopicPartition) -> int | None:
        """The group's offset, unless a foreign program has set it last."""
        return None if partition in self._meddled else self._stored.get(partition)

    def claim_of(self, partition: TopicPartition) -> int:
        """The owner node's czxid; 0 without one."""
        return self._claims.get(partition, (0, OPERATOR))[0]

    def disturb_owned(self, session: int) -> None:
        """A foreign program removes all that a session owns."""
        for partition, (_, holder) in self._claims.items():
            if holder == session:
                self.disturb(partition)

    def unfinished(self, partition: TopicPartition, end: int) -> str:
        """What remains to be done up to the end of the log; empty if nothing does."""
        missing = set(range(self._start.get(partition, 0), end)) - self.finished.get(partition, set())
        if missing:
            return f"{partition} is not read at {sorted(missing)[:5]}"
        if end and self._stored.get(partition) != end and partition not in self._meddled:
            return f"{partition} is committed to {self._stored.get(partition)}, not {end}"
        return ""

    def violated(self, what: str) -> None:
        if self.watching:
            self.note(f"VIOLATION {what}")
            self.violations.append(f"at {self.world.now:.3f}: {what}")

    @property
    def disturbed_until(self) -> float:
        """When the last of the disturbances is over that excuse what members do."""
        return max(self._disturbed.values(), default=0.0)

    def note(self, what: str) -> None:
        self.trace.append(f"{self.world.now:9.3f} {what}")

    def handed_out(self, member: Member, partition: TopicPartition, offsets: range, key: bytes) -> Handed:
        """An application has received these records; `key` is that of the last one."""
        now = self.world.now
        for observe in self.observers:
            observe(member, partition)
        claim, session = self._claims.get(partition, (0, OPERATOR))
        holder = self.network.processes.get(session)
        excused = self._disturbed.get(partition, 0.0) > now
        if partition not in member.owned:
            self.violated(f"{member.name} got {partition}[{offsets}], which it was not notified of")
        if member.connector is not None and partition in member.connector.paused:
            self.violated(f"{member.name} got {partition}[{offsets}], which it has paused")
        if holder is not member.process:
            claim = 0
            if not excused:
                self.violated(f"{member.name} got {partition}[{offsets}], which belongs to {holder}")
        for other in self.members:
            if other is not member and other.active and not other.process.frozen and not excused:
                held = (
                    other.connector is not None and sessions_of(other.connector).lease.held and partition in other.held
                )
                if held:
                    self.violated(f"{member.name} got {partition}[{offsets}], which {other.name} could hand out too")
        self._require_evidence(member)
        if self._outdated(partition, claim) if claim else self._of_former_log(partition, key):
            return Handed(member, claim, now, counts=False)
        offsets = self._still_there(partition, offsets, key)
        if not offsets:
            return Handed(member, claim, now, counts=False, key=key)
        self._compare_with_the_log(member, partition, offsets, key)
        self._require_stored(member, partition, offsets[0], claim)
        records = self._handed.setdefault(partition, {})
        for offset in offsets:
            if (
                claim
                and (earlier := records.get(offset)) is not None
                and not self._may_be_redelivered(earlier)
                and not self._sought_where_stored(partition, earlier)
            ):
                self.violated(
                    f"{member.name} got {partition}@{offset}, which {earlier.member.name} had at {earlier.at:.3f}"
                )
                break
        handed = Handed(member, claim, now, key=key)
        records.update(dict.fromkeys(offsets, handed))
        return handed

    def _require_stored(self, member: Member, partition: TopicPartition, first: int, claim: int) -> None:
        """If it died now, its records would be read again: an offset is stored, and none behind them."""
        stored = self._stored.get(partition)
        if self.world.now <= self._restored_until:
            return  # a former owner may commit
        if claim and partition not in self._meddled and (stored is None or stored > first):
            self.violated(f"{member.name} got {partition}@{first}, and {stored} is stored")

    def _require_evidence(self, member: Member) -> None:
        """Its lease lasts for half a timeout from the sending of what the servers have had of its session."""
        session = self.ensemble.sessions.get(member.session)
        if session is not None and session.alive and member.connector is not None:
            until = sessions_of(member.connector).lease.safe_until - self.world.slept
            if until > session.touched + session.timeout / 2:
                self.violated(f"{member.name} trusts its session until {until:.3f}, touched at {session.touched:.3f}")

    def done(self, partition: TopicPartition, offsets: range, handed: Handed) -> None:
        """It has processed them."""
        handed.done = self.world.now
        there = self._still_there(partition, offsets, handed.key)
        if len(there) < len(offsets):
            self._former.setdefault(partition, set()).update(range(max(there.stop, offsets.start), offsets.stop))
        if handed.counts:
            self.finished.setdefault(partition, set()).update(there)

    def given_to_coordinator(self, copied: bool, peer: Peer, partition: TopicPartition, offset: int) -> None:
        """A broker is about to store an offset: that which ZooKeeper has, if it gets a copy, else the only one."""
        assert isinstance(peer, Line)
        claim, holder = self._claims.get(partition, (0, OPERATOR))
        if self.network.processes.get(holder) is not peer.process or (copied and self._outdated(partition, claim)):
            return  # nothing keeps a former owner from that; the claim of a topic that was created again ignores it
        self._copied[partition] = offset
        if not copied:
            self._offset_changes(partition, offset, holder)
        elif offset != self._stored.get(partition) and partition not in self._meddled:
            self.violated(f"{peer.process} copies {partition} = {offset}, and {self._stored.get(partition)} is stored")

    def logged(self, name: str, event: str) -> None:
        """A member of this name has logged an event. By some it excuses itself, which must have a reason."""
        if event in NEVER_LOGGED or (event == CHANGED and not self.offsets_changed):
            self.violated(f"{name} logs: {event}")
        late, uncommitted = event.startswith("work not finished in time"), event.startswith("final commit failed")
        if self.watching and (late or uncommitted):
            member = next(each for each in reversed(self.members) if each.name == name)
            (self._released_late if late else self._left_uncommitted)(member)

    def _released_late(self, member: Member) -> None:
        """It has waited the whole revoke deadline for work in hand, which must be the reason.

        A member that leaves waits for acknowledgements, for a third of the stop's deadline.
        """
        waits_to_leave = member.explicit and member.left_at is not None
        waited = min(REVOKE_DEADLINE, STOP_DEADLINE / 3) if waits_to_leave else REVOKE_DEADLINE
        began = self.world.now - waited
        # What was acknowledged behind the late records comes again, even if retention has removed those.
        self._held_back.update(handed.claim for handed in member.in_hand if handed.at <= began)
        if self.world.now > member.troubled and all(handed.at > began for handed in member.in_hand):
            self.violated(f"{member.name} waited {waited:.1f} s for work that had ended before")

    def _left_uncommitted(self, member: Member) -> None:
        """What it has processed may be redelivered if the reason is ZooKeeper, or the way to it."""
        process, now = member.process, self.world.now
        unanswered = now - self.network.answered.get(process, 0.0) >= COMMIT_PATIENCE
        if unanswered or now < member.troubled or self.network.latency.get(process) == SLOW:
            held = [claim for claim, holder in self._claims.values() if self.network.processes.get(holder) is process]
            self._unclean.update(held)

    def _compare_with_the_log(self, member: Member, partition: TopicPartition, offsets: range, key: bytes) -> None:
        log = self.logs.logs.get(partition)
        if log is None:
            return
        if log.differs_at(key) <= offsets[0]:
            self.violated(f"{member.name} got records of {key!r} as {partition}[{offsets}]")
        first, wanted = offsets[0], member.sought.pop(partition, offsets[0])
        if partition in self._cut:
            return
        begin = log.first_from(max(wanted, log.start))
        if first < wanted or (begin < first and partition not in self._overtaken):
            self.violated(f"{member.name} got {partition}[{offsets}] after it went to {wanted}")

    def _outdated(self, partition: TopicPartition, claim: int) -> bool:
        """Whether the claim is of a topic that was deleted since."""
        topic = self.ensemble.tree.nodes.get(topic_path(partition.topic))
        return topic is None or claim < topic.czxid

    def _of_former_log(self, partition: TopicPartition, key: bytes) -> bool:
        log = self.logs.logs.get(partition)
        return log is None or log.differs_at(key) == 0

    def _still_there(self, partition: TopicPartition, offsets: range, key: bytes) -> range:
        """Those of an application's records that are still in the log, which may have been cut off since.

        `key` is that of the last one.
        """
        log = self.logs.logs.get(partition)
        if log is None or partition not in self._cut:
            return offsets
        return range(offsets.start, min(offsets.stop, log.differs_at(key)))

    def _may_be_redelivered(self, earlier: Handed) -> bool:
        """At-least-once: the claim was not released in order, or work on it no longer had to be waited for."""
        if earlier.claim in self._unclean or not earlier.claim:
            return True
        done = self.world.now if earlier.done is None else earlier.done
        left = earlier.member.left_at
        if done - earlier.at >= REVOKE_DEADLINE or (left is not None and done >= left):
            self._held_back.add(earlier.claim)
            return True
        # Acknowledged out of order: what was done behind a record that was not is stored no more than that one is.
        return earlier.member.explicit and earlier.claim in self._held_back

    def _committed(self, session: int, operations: Sequence[Operation]) -> None:
        """Every transaction that ZooKeeper executed."""
        nodes = self.ensemble.tree.nodes
        if operations and not all(isinstance(operation, Check) for operation in operations):
            written = ", ".join(shown(operation, self.paths.root) for operation in operations)
            self.note(f"{self.network.processes.get(session)} writes {written}")
        for operation in operations:
            kind, partition = self._about(operation.path)
            if kind == "owners":
                node = nodes.get(operation.path)
                present = (node.czxid, node.owner) if node is not None else None
                before = self._claims.get(partition)
                if present != before:
                    self._owner_changes(partition, before, present, session)
            elif kind == "offsets" and isinstance(operation, (SetData, Create)):
                self._offset_changes(partition, int(operation.data), session)
            elif kind == "offsets" and isinstance(operation, Delete):
                self._stored.pop(partition, None)

    def _owner_changes(
        self, partition: TopicPartition, before: tuple[int, int] | None, present: tuple[int, int] | None, session: int
    ) -> None:
        if before is not None:
            claim, holder = before
            process = self.network.processes.get(holder)
            member = next((each for each in self.members if each.process is process), None)
            expired = holder != OPERATOR and not self.ensemble.sessions[holder].alive
            in_trouble = member is None or member.dead or (expired and self.world.now < member.troubled)
            if session != holder or in_trouble:
                self._unclean.add(claim)
            if expired and not in_trouble and member is not None and member.active and not member.without_brokers:
                self.violated(f"{member.name} lost its session without any reason")
        if present is None:
            self._claims.pop(partition, None)
        else:
            self._claims[partition] = present
            if self._kept.get(partition) != session:
                self._kept.pop(partition, None)
            self._require_registered(partition, session)

    def _require_registered(self, partition: TopicPartition, session: int) -> None:
        """Who claims is registered, by this session: other members count with it."""
        process = self.network.processes.get(session)
        member = next((each for each in self.members if each.process is process), None)
        if member is None or self.world.now <= max(self._restored_until, self._unregistered.get(member.consumer, 0.0)):
            return
        node = self.ensemble.tree.nodes.get(self.paths.member(member.consumer))
        if node is None or node.owner != session:
            self.violated(f"{member.name} claimed {partition} while its id is not registered by its session")

    def _offset_changes(self, partition: TopicPartition, offset: int, session: int) -> None:
        before = self._stored.get(partition)
        self._stored[partition] = offset
        claim, holder = self._claims.get(partition, (0, OPERATOR))
        process = self.network.processes.get(session)
        stale = session not in (OPERATOR, holder)
        if stale:
            # After a restoration, the fence of a claim that the copy lacks may hold, or that of one whose record was
            # deleted, by the versions of another claim: that is lost then, and begins again at what was stored here.
            self._unclean.add(claim)
            if self.world.now > self._restored_until and partition not in self.unrecorded:
                self.violated(f"{process} stored {partition} = {offset} without owning it")
        if session == OPERATOR or self._outdated(partition, claim):
            self._meddled.add(partition)
            self._skipped(partition, offset)
            return
        meddled = partition in self._meddled
        self._meddled.discard(partition)
        if before is None:
            before = offset if self.reset == LARGEST else 0
            if self._kept.pop(partition, None) != holder:
                self._start[partition] = before
        if partition in self._cut and offset < before:
            before = offset
            self._handed[partition] = {at: each for at, each in self._handed.get(partition, {}).items() if at < offset}
            self._former[partition] = {at for at in self._former.get(partition, ()) if at < offset}
        sought = offset in self._sought.get(partition, ()) or self._seek_undone(partition, before, offset)
        if sought or (offset >= before and partition in self._overtaken):
            self._skipped(partition, offset)
        elif stale and offset < before:
            self._handed.pop(partition, None)  # after a restoration (see above): who claims it next begins there
        elif meddled:
            pass
        elif offset < before:
            self.violated(f"{process} moved {partition} back from {before} to {offset}")
        elif missing := set(range(before, offset)) - self._done(partition):
            self.violated(f"{process} stored {partition} = {offset}, but {sorted(missing)[:5]} was not worked on")

    def _seek_undone(self, partition: TopicPartition, before: int, offset: int) -> bool:
        """Whether a seek had stored `before`, and did not get to copy it: the former copy counts if it is larger."""
        returned = any((partition, before) in member.went_to for member in self.members)
        return not returned and before in self._sought.get(partition, ()) and offset == self._copied.get(partition)

    def _sought_where_stored(self, partition: TopicPartition, earlier: Handed) -> bool:
        """Whether its application then sought the stored offset: for that nothing has to be stored."""
        stored = self._stored.get(partition)
        at = self._sought.get(partition, {}).get(stored) if stored is not None else None
        return at is not None and earlier.at <= at

    def _skipped(self, partition: TopicPartition, offset: int) -> None:
        """What is before the offset need not be read, and all may be redelivered."""
        self.finished.setdefault(partition, set()).update(range(offset))
        self._floor[partition] = max(self._floor.get(partition, 0), offset)
        self._handed.pop(partition, None)

    def _done(self, partition: TopicPartition) -> set[int]:
        """What was processed, also of records that the log has lost since."""
        return self.finished.get(partition, set()) | self._former.get(partition, set())

    def _about(self, path: str) -> tuple[str, TopicPartition]:
        parts = path.removeprefix(self.paths.root).split("/")
        if path.startswith(self.paths.root) and len(parts) == 4:
            return parts[1], TopicPartition(parts[2], int(parts[3]))
        return "", TopicPartition("", 0)
