"""The claim record of a partition, `/consumers/<group>/claims/<topic>/<partition>`: its plan, and how a claim ends.

A partition whose record has an unknown format is not consumed.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Container, Iterable
from contextlib import suppress
from typing import Annotated, Final, TypeAlias

import msgspec

from kzconsumer.model import ConsumerThreadId
from kzconsumer.registry.nodes import decode_offset, of_earlier_topic, read_json
from kzconsumer.zookeeper.operations import Check, Node

# A plan in ZooKeeper has a set of offsets as a short text: `3 17-19`, relative to the first offset of the range.

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Offsets `first <= offset < until`, in order and apart."""

LONGEST: Final = 10_000
"""In characters: 1,400 single offsets of a range of a million, or any number that follow each other. 64 plans with so
long a list fit into one request to ZooKeeper."""

_TEXT: Final = re.compile(r"\d{1,19}(-\d{1,19})?( \d{1,19}(-\d{1,19})?)*", re.ASCII)


def spans_of(offsets: Iterable[int], more: Spans = ()) -> Spans:
    """The offsets, and those of `more`."""
    found: list[tuple[int, int]] = []
    for first, until in sorted([*((each, each + 1) for each in offsets), *more]):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((first, until))
    return tuple(found)


def offset_list(spans: Spans, first: int) -> str:
    """Raises ValueError for a text that would be longer than `LONGEST`."""
    pairs = ((begin - first, until - 1 - first) for begin, until in spans)
    text = " ".join(str(begin) if begin == last else f"{begin}-{last}" for begin, last in pairs)
    if len(text) > LONGEST:
        raise ValueError(f"{sum(until - begin for begin, until in spans)} records, too many for one range")
    return text


def offsets_in(text: str, first: int) -> Spans:
    """Raises ValueError for a text that `offset_list` has not made."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a list of offsets")
    found: list[tuple[int, int]] = []
    for each in text.split(" "):
        begin, _, last = each.partition("-")
        span = first + int(begin), first + int(last or begin) + 1
        if span[0] >= span[1] or (found and span[0] <= found[-1][1]):
            raise ValueError(f"{each!r} in a list of offsets is not in order")
        found.append(span)
    return tuple(found)


CLAIM_RECORD_VERSION = 1

_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A range being written by a replayable sink, `first <= offset < until`: the partition's next owner replays it.

    The transaction that writes it also sets the stored offset to `first`, at node version `offset_version`: as long as
    both hold, the offset was not changed by others. `id` is unique. `records` and `checksum` are the range's as read
    with `isolation`. Where the sink fetches for itself, `records` counts offsets and `checksum` is empty until it has
    read them; nothing is published before. Offsets refer to the topic's `incarnation` and the reset `epoch`,
    `fingerprint` names the destination. `steps` are the steps of the work that are done (`sinks/interface`), absent
    without any. `rejected` (`offset_list`) are records that are not written with the range: `[rejected]` has been
    carried out for them. They are among the `records` and in `checksum`. `leader_epoch` is that of the last record
    before `until`, absent if it is unknown.
    """

    id: str
    first: _Offset
    until: _Offset
    offset_version: int
    records: _Count
    checksum: str
    incarnation: str
    epoch: int
    isolation: str
    fingerprint: str
    steps: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    rejected: str | msgspec.UnsetType = msgspec.UNSET
    leader_epoch: _Count | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.first >= self.until:
            raise ValueError(f"a plan from {self.first} until {self.until}")
        if (left_out := self.left_out) and left_out[-1][1] > self.until:
            raise ValueError(f"a plan until {self.until} without offset {left_out[-1][1] - 1}")

    @property
    def epoch_before_end(self) -> int:
        """The leader epoch of the last record before `until`; -1 if it is unknown."""
        return self.leader_epoch if self.leader_epoch is not msgspec.UNSET else -1

    @property
    def left_out(self) -> Spans:
        """The rejected offsets."""
        return offsets_in(self.rejected, self.first) if self.rejected else ()

    @property
    def done(self) -> tuple[str, ...]:
        """The steps that are done, in order."""
        return self.steps or ()


class StoredPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset that was stored with this record, and the leader epoch of the last record before it.

    It counts for the stored offset as long as that is the same: another one was stored by another program.
    """

    offset: _Offset
    leader_epoch: _Count


class CommitMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Up to which offset a destination is committed, set by each commit of a replayable sink in its transaction.

    Any program may write the stored offset, and one that moves it back would have ranges written twice. The mark has no
    other writers and never moves back: a claim continues at the larger of the two. It is valid for its `fingerprint`,
    `incarnation` and `epoch` only. `written` is the last range written to the destination, as (first, until), if any.
    """

    until: _Offset
    incarnation: str
    epoch: int
    fingerprint: str
    written: tuple[_Offset, _Offset] | msgspec.UnsetType = msgspec.UNSET


class ClaimRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `claims/<topic>/<partition>`; the node's *version* is half of the fence.

    `incarnation` is the czxid of the topic's node in hexadecimal, `epoch` counts offset resets, `fingerprint` names the
    destination of the owner's replayable sink ("" without one), `plan` is the range in flight. `mark` belongs to the
    destination that committed last, which need not be the owner's; it may be absent, as `position`, which is if the
    leader epoch is unknown.
    """

    version: int
    assignor: str
    incarnation: str
    epoch: int = 0
    fingerprint: str = ""
    plan: Plan | None = None
    mark: CommitMark | msgspec.UnsetType = msgspec.UNSET
    position: StoredPosition | msgspec.UnsetType = msgspec.UNSET

    def leader_epoch_before(self, offset: int | None) -> int:
        """The leader epoch of the last record before a stored offset; -1 if it is unknown."""
        at = self.position
        return at.leader_epoch if at is not msgspec.UNSET and at.offset == offset else -1

    def has_stored(self, offset: int | None) -> bool:
        """Whether the record says that it was written together with this offset, of the topic of its incarnation."""
        at, mark = self.position, self._own_mark
        of_position = at is not msgspec.UNSET and at.offset == offset
        return of_position or (mark is not None and mark.until == offset)

    @property
    def committed_until(self) -> int | None:
        """Up to where the owner's destination is committed, of this topic and epoch; None if unknown."""
        return mark.until if (mark := self._own_mark) is not None else None

    @property
    def last_written(self) -> tuple[int, int] | None:
        """The last range, as (first, until), that was written to the owner's destination; None if unknown."""
        mark = self._own_mark
        return mark.written if mark is not None and mark.written is not msgspec.UNSET else None

    @property
    def written_elsewhere(self) -> bool:
        """Whether the records before are in another destination than the owner's."""
        mark = self._present_mark
        return mark is not None and mark.fingerprint != self.fingerprint

    @property
    def _own_mark(self) -> CommitMark | None:
        mark = self._present_mark
        return mark if mark is not None and mark.fingerprint == self.fingerprint else None

    @property
    def _present_mark(self) -> CommitMark | None:
        """The mark, of any destination, if it is of this topic and epoch."""
        mark = self.mark
        if mark is msgspec.UNSET or (mark.incarnation, mark.epoch) != (self.incarnation, self.epoch):
            return None
        return mark

    def after(
        self,
        offset: int,
        plan: Plan | None,
        epoch: int,
        written: tuple[int, int] | None = None,
        leader_epoch: int = -1,
    ) -> ClaimRecord:
        """The record after its owner stores `offset` and this plan. The mark never moves back.

        `written` is the last range that this owner wrote to the destination, if any, `leader_epoch` that of the last
        record before `offset`, -1 if unknown.
        """
        position = StoredPosition(offset, leader_epoch) if leader_epoch >= 0 else msgspec.UNSET
        record = msgspec.structs.replace(self, plan=plan, epoch=epoch, position=position)
        if not self.fingerprint:
            return record
        mark = CommitMark(
            until=max(offset, record.committed_until or 0),
            incarnation=self.incarnation,
            epoch=epoch,
            fingerprint=self.fingerprint,
            written=written or record.last_written or msgspec.UNSET,
        )
        return msgspec.structs.replace(record, mark=mark)


def is_of_earlier_topic(offset: Node, record: ClaimRecord | None, incarnation: int) -> bool:
    """Whether a stored offset is of an earlier topic of that name; `incarnation` is that of the present one.

    A member that did not know yet of the new topic may have stored one since: its record says so. Others that were
    stored since count: by original members, and by tools, which write the present incarnation into the record.
    """
    if record is not None and record.incarnation == f"{incarnation:#x}":
        return False
    if of_earlier_topic(offset.stat.mzxid, incarnation):
        return True
    with suppress(ValueError):
        return record is not None and record.has_stored(decode_offset(offset.data))
    return False


def encode_claim_record(record: ClaimRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_claim_record(data: bytes) -> ClaimRecord:
    """Raises ValueError for an unknown format: such a partition must not be consumed."""
    try:
        fields = read_json(data)
        if isinstance(fields, dict) and isinstance(plan := fields.get("plan"), dict):
            plan.pop("attempts", None)  # written by earlier versions
        record = msgspec.convert(fields, type=ClaimRecord)
    except (ValueError, msgspec.DecodeError) as error:
        raise ValueError(f"not a claim record: {error}") from error
    if record.version != CLAIM_RECORD_VERSION:
        raise ValueError(f"claim record of format {record.version}, this version knows {CLAIM_RECORD_VERSION}")
    return record


# A claim makes the partition ours with a fence, or is blocked by another session's node, or is refused.


class OwnerNode(msgspec.Struct, frozen=True):
    """An owner node as last written; it changes only with the thread that it names."""

    path: str
    version: int

    def check(self) -> Check:
        return Check(self.path, self.version)


class Fence(msgspec.Struct, frozen=True):
    """The two versions that only the present owner knows. Check(owner, 0) alone is no fence: any new node has it.

    The record's version also changes with every plan: a fence is what the owner's last write has left.
    """

    owner: OwnerNode
    record_path: str
    record_version: int

    def checks(self) -> tuple[Check, Check]:
        return self.owner.check(), Check(self.record_path, self.record_version)


class Claimed(msgspec.Struct, frozen=True):
    """The partition is ours; `stored` is the offset read after the claim (None and version -1: there is none)."""

    fence: Fence
    record: ClaimRecord
    stored: int | None
    stored_version: int


class Blocked(msgspec.Struct, frozen=True):
    """Another session holds the owner node."""

    path: str
    owner: str
    ephemeral_owner: int


class ClaimRefused(msgspec.Struct, frozen=True):
    """This member must not consume the partition."""

    path: str
    reason: str


def refusal(plan: Plan, fingerprint: str) -> str | None:
    """Why a member with this destination ("": a sink that cannot replay) must not take over a plan; None if it may."""
    if fingerprint and plan.fingerprint == fingerprint:
        return None
    planned = f"offsets {plan.first} to {plan.until} are planned for another destination ({plan.fingerprint})"
    ours = f"ours is {fingerprint}" if fingerprint else "this sink cannot replay"
    return f"{planned}, {ours}: only a member with that destination can finish them"


class BlockedBy(enum.Enum):
    LIVE_MEMBER = "a live member, which has to release it"
    UNREGISTERED = "a member that is not registered: its session has to expire"
    PERSISTENT = "a persistent node: only an operator may delete it"


def blocked_by(blocked: Blocked, members: Container[str]) -> BlockedBy:
    if blocked.ephemeral_owner == 0:
        return BlockedBy.PERSISTENT
    return BlockedBy.UNREGISTERED if owning_member(blocked.owner, members) is None else BlockedBy.LIVE_MEMBER


def owning_member(text: str, members: Container[str]) -> str | None:
    """The registered member that an owner node names: by a thread of its, or by its id; None if there is none.

    Clients in Go (`wvanbergen/kafka`) and Ruby (`poseidon_cluster`) have no threads and write the id.
    """
    if text in members:
        return text
    try:
        consumer = ConsumerThreadId.parse(text).consumer
    except ValueError:
        return None
    return consumer if consumer in members else None
