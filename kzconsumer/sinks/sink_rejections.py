"""Carries out `[rejected]` for records that a sink has rejected, and finds those that its destination refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import anyio

from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachableError,
    ConnectionLostError,
    ContentRefusedError,
    RecordNotWrittenError,
    RecordRejectedError,
    SinkError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Message, Progress
from kzconsumer.records.forms import Unfetched
from kzconsumer.registry.claim_record import Spans, spans_of
from kzconsumer.rejected import RejectedRecord
from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejectedError, Rejected
from kzconsumer.sinks.range_plans import OwnedRanges

log = get_logger("kzconsumer.sink")

RequireRoom: TypeAlias = Callable[[Mapping[Progress, Spans]], None]
"""Raises SinkError if the plans of these claims cannot hold these offsets."""


class Policy(Protocol):
    """`RejectedRecords`."""

    def check(self, at: TopicPartition, offset: int, error_class: str, reason: str) -> None: ...

    async def handle(self, rejected: Sequence[RejectedRecord], lost: Callable[[], bool]) -> bool: ...


# Rejected records that are handled at a time.
_PIECE: Final = 500
PAUSE: Final = 1.0
"""Seconds between two attempts to fetch a rejected record."""


class Rejecting:
    def __init__(self, owned: OwnedRanges, policy: Policy, require_room: RequireRoom | None) -> None:
        """`require_room` for a sink with plans."""
        self._owned = owned
        self._policy = policy
        self._require_room = require_room

    async def carry_out(
        self, parts: Mapping[Progress, RangeData], rejected: RecordsRejectedError
    ) -> dict[Progress, list[int]]:
        """Return when each record is a dead letter or skipped, with their offsets; without those of lost claims.

        Raises RecordNotWrittenError if the policy of one is "fail", SinkError for records that are not in the ranges,
        or are too many for a plan. Policies and plans are asked before the first letter: the batch would fail again
        at each start, and repeat the letters.
        """
        claims = {part.topic_partition: progress for progress, part in parts.items()}
        offsets: dict[Progress, list[int]] = {}
        piece: list[RejectedRecord] = []
        try:
            self._check(parts, claims, rejected.records)
            async for progress, record in self._found(parts, claims, rejected.records):
                offsets.setdefault(progress, []).append(record.message.offset)
                piece.append(record)
                if len(piece) == _PIECE:
                    if not await self._policy.handle(piece, lambda: _all_lost(parts)):
                        return {}
                    piece = []
            if piece and not await self._policy.handle(piece, lambda: _all_lost(parts)):
                return {}
        except RecordRejectedError as error:
            more = len(rejected.records) - 1
            others = f" (and {more} more of this batch were rejected)" if more else ""
            raise RecordNotWrittenError(f"{error}{others}") from error
        except ValueError as error:
            raise SinkError(str(error)) from error
        return offsets

    def _check(
        self,
        parts: Mapping[Progress, RangeData],
        owned: Mapping[TopicPartition, Progress],
        records: Sequence[Rejected],
    ) -> None:
        """Whether all of it can be carried out, as far as that is known without the records."""
        offsets: dict[Progress, list[int]] = {}
        for record in records:
            at = TopicPartition(record.topic, record.partition)
            progress = owned.get(at)
            if progress is None or not parts[progress].first <= record.offset < parts[progress].until:
                raise _not_in_batch(record)
            if not progress.lost:
                self._policy.check(at, record.offset, record.error_class, record.reason)
                offsets.setdefault(progress, []).append(record.offset)
        if self._require_room is not None:
            self._require_room({progress: spans_of(each) for progress, each in offsets.items()})

    async def _found(
        self,
        parts: Mapping[Progress, RangeData],
        owned: Mapping[TopicPartition, Progress],
        records: Sequence[Rejected],
    ) -> AsyncIterator[tuple[Progress, RejectedRecord]]:
        """Of records that `_check` has let pass."""
        for record in records:
            at = TopicPartition(record.topic, record.partition)
            progress = owned[at]
            message = await self._message(progress, parts[progress], record.offset)
            if progress.lost:
                continue  # the next owner rejects it
            if message is None:
                raise _not_in_batch(record)
            yield progress, RejectedRecord(message, record.error_class, record.reason)

    async def _message(self, progress: Progress, part: RangeData, offset: int) -> Message | None:
        for piece in part.pieces:
            row = piece.rows_below(offset)
            if not piece.fetched and row < len(piece) and piece.rows_below(offset + 1) > row:
                return await self._fetch(progress, part.topic_partition, offset)
            if piece.fetched:
                for message in piece.slice(row, row + 1).messages():
                    if message.offset == offset:
                        return message
        return None

    async def _fetch(self, progress: Progress, partition: TopicPartition, offset: int) -> Message | None:
        """As a dead letter, which may have to wait for brokers, too; None if the claim is lost meanwhile."""
        while not progress.lost:
            try:
                message = await self._owned.message(partition, offset)
                await self._owned.lose_recreated([progress])  # see `RangePlans.begin`
                return message
            except (ConnectionLostError, BrokersUnreachableError, BrokerError) as error:
                if isinstance(error, BrokerError) and not error.retriable:
                    raise
                event = "rejected record not fetched, retrying"
                log.warning(event, **partition._asdict(), offset=offset, reason=str(error), again=True)
            await anyio.sleep(PAUSE)
        return None


def _not_in_batch(record: Rejected) -> ValueError:
    at = TopicPartition(record.topic, record.partition)
    return ValueError(f"the sink rejects {at} at offset {record.offset}, which is not in its batch")


def _all_lost(owned: Collection[Progress]) -> bool:
    return all(progress.lost for progress in owned)


# Refused records of a range are found by trying halves of it.

CLASS: Final = "refused"
"""The class of errors of records that only the destination knows to be unusable."""
MOST_REFUSED: Final = 32
"""Records of one range. Each takes about twice as many trials as the range can be halved: 40 of a million."""


class Separating:
    """`trial` as in `kzconsumer.sinks.interface.Trying`."""

    def __init__(self, trial: Callable[[Batch], Awaitable[None]]) -> None:
        self._trial = trial
        self._trials = 0

    async def refused(self, part: RangeData) -> list[Rejected]:
        """The refused records of a range; empty if it is not refused, or only as a whole, or for more than
        `MOST_REFUSED` records. Raises SinkError if a trial fails for another reason.
        """
        self._trials = 0
        found: list[Rejected] = []
        whole = await self._search(part, found)
        log.info("refused records searched", **part.range._asdict(), trials=self._trials, found=len(found))
        return found if whole else []

    async def _search(self, part: RangeData, found: list[Rejected], *, refused: bool = False) -> bool:
        """Whether all of the refusal is explained by `found`. `refused`: the range is known to be."""
        single = part.records == 1
        if not refused or single:
            self._trials += 1
            try:
                await self._trial(Batch((part,)))
            except ContentRefusedError as error:
                if single:
                    found.append(Rejected(part.topic, part.partition, _first(part), str(error), CLASS))
                    return len(found) <= MOST_REFUSED
            else:
                return not refused
        before = len(found)
        lower, upper = _halves(part)
        if not await self._search(lower, found):
            return False
        # If nothing was found in the lower half, the upper one is refused, or neither is without the other.
        return await self._search(upper, found, refused=len(found) == before)


def _first(part: RangeData) -> int:
    piece = part.pieces[0]
    return piece.first if isinstance(piece, Unfetched) else next(piece.messages()).offset


def _halves(part: RangeData) -> tuple[RangeData, RangeData]:
    """Each with at least one record; bounds of offsets are the whole range's."""
    wanted = part.records // 2
    first, until = part.first, part.until
    while first < until:
        middle = (first + until) // 2
        if sum(piece.rows_below(middle) for piece in part.pieces) < wanted:
            first = middle + 1
        else:
            until = middle
    return part.between(part.first, first), part.between(first, part.until)
