"""Messages, and the ranges that are acknowledged with them."""

from __future__ import annotations

from typing import NamedTuple

from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.records import _native
from kzconsumer.records.forms import Records

Message = _native.Message


class HandedOut(NamedTuple):
    """The range acknowledged with a message or batch: `first <= offset < until` of a claim, with gaps of the log."""

    claim: OffsetTracker
    first: int
    until: int
    records: int


def load(lot: _native.Lot, records: Records, claim: OffsetTracker, begin: int) -> None:
    """Hand out the records as messages, which stand for all of the claim from offset `begin` on."""
    lot.load(records.decoded, *claim.topic_partition, claim, begin)


def handed_out(message: Message) -> HandedOut | None:
    """The range that acknowledging the message completes; None if no stream has made it."""
    return _one_record(_native.range_of(message))


def last_handed_out(lot: _native.Lot) -> HandedOut | None:
    """The same of the message that was taken last; None if there is none."""
    return _one_record(lot.last())


def _one_record(found: tuple[OffsetTracker, int, int] | None) -> HandedOut | None:
    return None if found is None else HandedOut(*found, 1)
