"""The claim record of a partition, `/consumers/<group>/claims/<topic>/<partition>`: its JSON, and the plan in it.

A record of a format that this version does not know is not read: the partition is not consumed.
"""

from __future__ import annotations

import msgspec

from kzconsumer.registry.node_json import read_json
from kzconsumer.registry.nodes import CommitMark, _Count, _Offset


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A range on its way into a replayable sink, `first <= offset < until`: whoever owns the partition next replays it.

    The transaction that writes it also makes the stored offset `first`, and leaves the offset's node at
    `offset_version`: as long as both hold, nobody has moved the offset under it. `id` tells it from every other plan.
    `records` and `checksum` are the range's as it was planned, read with `isolation`; `incarnation` and `epoch` say of
    which records its offsets speak, `fingerprint` for which destination they are. `steps` names those of the work that
    are done (`sinks/steps`); a plan without any does not mention them.
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

    def __post_init__(self) -> None:
        if self.first >= self.until:
            raise ValueError(f"a plan from {self.first} until {self.until}")

    @property
    def done(self) -> tuple[str, ...]:
        """The steps that are done, in the order in which they were."""
        return self.steps or ()


class ClaimRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `claims/<topic>/<partition>`; the node's *version* is the fence.

    `incarnation` is the czxid of the topic's node in hexadecimal, `epoch` counts offset resets, `fingerprint` names the
    destination of the owner's replayable sink ("" without one), `plan` is the range in flight. `mark` is of the
    destination that committed last, which need not be the owner's; a record without one does not mention it.
    """

    version: int
    assignor: str
    incarnation: str
    epoch: int = 0
    fingerprint: str = ""
    plan: Plan | None = None
    mark: CommitMark | msgspec.UnsetType = msgspec.UNSET

    @property
    def committed_until(self) -> int | None:
        """Up to where the owner's destination is committed, of this topic and epoch; None: that is not known."""
        return mark.until if (mark := self._own_mark) is not None else None

    @property
    def last_written(self) -> tuple[int, int] | None:
        """The last range, as first and until, that the owner's destination took; None: that is not known."""
        mark = self._own_mark
        return mark.written if mark is not None and mark.written is not msgspec.UNSET else None

    @property
    def _own_mark(self) -> CommitMark | None:
        mark = self.mark
        if mark is msgspec.UNSET:
            return None
        same = (mark.incarnation, mark.epoch, mark.fingerprint) == (self.incarnation, self.epoch, self.fingerprint)
        return mark if same else None

    def after(self, offset: int, plan: Plan | None, epoch: int, written: tuple[int, int] | None = None) -> ClaimRecord:
        """The record as the owner leaves it that stores `offset`, with this plan. A mark moves on, never back.

        `written` is the last range that the owner had the destination take, None if none.
        """
        record = msgspec.structs.replace(self, plan=plan, epoch=epoch)
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


CLAIM_RECORD_VERSION = 1


def encode_claim_record(record: ClaimRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_claim_record(data: bytes) -> ClaimRecord:
    """Raises ValueError for a format this version does not know: such a partition must not be consumed."""
    try:
        fields = read_json(data)
        if isinstance(fields, dict) and isinstance(plan := fields.get("plan"), dict):
            plan.pop("attempts", None)  # of failed writes, which nobody ever counted: plans do not have it any more
        record = msgspec.convert(fields, type=ClaimRecord)
    except (ValueError, msgspec.DecodeError) as error:
        raise ValueError(f"not a claim record: {error}") from error
    if record.version != CLAIM_RECORD_VERSION:
        raise ValueError(f"claim record of format {record.version}, this version knows {CLAIM_RECORD_VERSION}")
    return record
