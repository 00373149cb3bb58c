"""The offset of a streaming query, which Spark keeps in its checkpoint: the ranges of a batch, and what is delivered.

Spark hands it back as the start of the next batch once the batch is in the checkpoint's commit log, also after a
restart. So a range that it covers has been delivered, whatever the group's nodes say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import msgspec

from kzconsumer.model import OffsetRange, RangeIdentity


class Reached(NamedTuple):
    """Up to where a partition is delivered: in this topic of that name, and since the last reset of offsets."""

    incarnation: int
    epoch: int
    until: int


class PlannedRange(NamedTuple):
    """A range as it is planned, and the spans of it that are to be fetched: all but what the log has lost.

    `leader_epoch` and `weight`: see `RangeData`.
    """

    identity: RangeIdentity
    spans: tuple[OffsetRange, ...]
    leader_epoch: int = -1
    weight: float = 0.0


class StreamOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`reached` is keyed by partition ("orders-0"); `ranges` are those of the batch that ends here.

    `empties` counts batches without ranges, which would end where they begin otherwise. `socket` is where the member
    that made this offset learns that Spark has committed it. `epochs` are the leader epochs of the batch's
    partitions, where they are known: its tasks refuse another log (`RangeReader.epochs`). `weights` are those
    of the ranges that are known.
    """

    group: str
    reached: Mapping[str, Reached] = {}
    ranges: tuple[RangeIdentity, ...] = ()
    empties: int = 0
    socket: str = ""
    epochs: Mapping[str, int] = {}
    weights: Mapping[str, float] = {}

    @classmethod
    def of_json(cls, content: Mapping[str, Any], group: str) -> Self:
        """From what Spark hands back. Raises ValueError for an offset of another source, format or group."""
        try:
            offset = msgspec.convert(content, cls)
        except msgspec.ValidationError as error:
            raise ValueError(
                f"the checkpoint has offsets of another source, or of a newer version of this one: {error}"
            ) from None
        if offset.group != group:
            raise ValueError(f"the checkpoint is of group {offset.group}, not of {group}: use another one")
        return offset

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def covers(self, part: RangeIdentity) -> bool:
        """Whether all of the range is delivered."""
        return self._reached(part) >= part.until

    def epoch(self, part: OffsetRange) -> int:
        """The leader epoch of a range of the batch; -1 if it is unknown."""
        return self.epochs.get(str(part.topic_partition), -1)

    def after(self, planned: Iterable[PlannedRange], socket: str = "") -> Self:
        """The end of a batch of these ranges, without what is delivered; the same offset if all is."""
        left = [part for part in planned if not self.covers(part.identity)]
        if not left:
            return self
        reached = dict(self.reached)
        ranges = []
        epochs = {_key(part.identity): part.leader_epoch for part in left if part.leader_epoch >= 0}
        weights = {_key(part.identity): part.weight for part in left if part.weight > 0}
        for identity, spans, _, _ in left:
            begin = self._reached(identity)
            ranges += [
                identity._replace(first=max(span.first, begin), until=span.until)
                for span in spans
                if span.until > begin
            ]
            reached[_key(identity)] = Reached(identity.incarnation, identity.epoch, identity.until)
        return type(self)(self.group, reached, tuple(ranges), self.empties, socket, epochs, weights)

    def empty(self) -> Self:
        """The end of a batch without ranges."""
        return msgspec.structs.replace(self, ranges=(), empties=self.empties + 1, epochs={}, weights={})

    def _reached(self, part: RangeIdentity) -> int:
        at = self.reached.get(_key(part))
        return at.until if at is not None and (at.incarnation, at.epoch) == (part.incarnation, part.epoch) else 0


def _key(part: RangeIdentity) -> str:
    return str(part.topic_partition)
