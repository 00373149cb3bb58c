"""The interface between the member and a sink, which makes records durable.

A plugin is an entry point of the group `kzconsumer.sinks` that names a callable `(options, context) -> Sink`. Calling
it checks the options, without side effects outside the process; entering the sink starts it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import msgspec

from kzconsumer.errors import KzConsumerError
from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition
from kzconsumer.offsets.progress import Message
from kzconsumer.records.checksums import Contents
from kzconsumer.records.forms import Records, Unfetched
from kzconsumer.registry.claim_record import Spans, spans_of
from kzconsumer.settings.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa


MOST_STEPS = 32
LONGEST_STEP = 100
"""In characters. With the limit above: 64 plans still fit into one request to ZooKeeper."""


class StepNotRecordedError(KzConsumerError):
    """The step is not stored: the next write of the range repeats it."""


class Steps:
    """The steps of a batch that are done, stored in the plans of its ranges, so that a replay does not repeat them.

    A step done for a batch is done for each of its ranges, which are replayed one by one.
    """

    def __init__(self, done: Iterable[str], record: Callable[[str], Awaitable[bool]]) -> None:
        """`record` stores a step in the plan of every range; False if none of them is owned any more."""
        self._done = tuple(done)
        self._record = record

    def __repr__(self) -> str:
        return f"Steps({', '.join(self._done)})"

    @property
    def done(self) -> tuple[str, ...]:
        """In the order in which they were recorded."""
        return self._done

    async def record(self, step: str) -> None:
        """Store that this step is done for each range that is still owned.

        Raises StepNotRecordedError when none is, ValueError for a name that `check_step` refuses.
        """
        check_step(step, self._done)
        if step not in self._done:
            if not await self._record(step):
                raise StepNotRecordedError(f'step "{step}" is not recorded: the partitions of the batch are lost')
            self._done = (*self._done, step)


def check_step(step: str, done: Iterable[str]) -> None:
    """Raises ValueError for a name that cannot be stored with those that are done."""
    if not step or not step.isprintable() or len(step) > LONGEST_STEP:
        raise ValueError(f"{step[:LONGEST_STEP]!r} is not the name of a step: 1 to {LONGEST_STEP} printable characters")
    others = set(done) - {step}
    if len(others) >= MOST_STEPS:
        raise ValueError(f'step "{step}": a batch has {MOST_STEPS} steps at most')


class RangeData(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Consecutive records of one partition: every record of the log with `first <= offset < until`.

    `pieces` hold them in offset order; sinks take them as columns (`batches`) or one by one (`messages`). Offsets may
    have gaps (compaction, control records). `incarnation` is the czxid of `/brokers/topics/<topic>` (it distinguishes a
    recreated topic from its predecessor), `epoch` the partition's reset epoch.

    For a sink that wants "ranges", `fetched` is False and there are no records: the sink fetches them. No record of the
    range is of a later epoch than `leader_epoch` (KIP-101), -1 if that is unknown, as it is where records are fetched.
    `left_out` are rejected records of the range: the sink fetches them and does not write them. They are among what it
    reports by `Batch.found`.
    """

    topic: str
    partition: int
    first: int
    until: int
    pieces: tuple[Records, ...]
    incarnation: int
    epoch: int
    leader_epoch: int = -1
    left_out: Spans = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.first, self.until)

    @property
    def identity(self) -> RangeIdentity:
        return RangeIdentity(self.topic, self.partition, self.incarnation, self.epoch, self.first, self.until)

    @property
    def records(self) -> int:
        """Number of records; where they are not counted (a sink that wants "ranges"), of offsets."""
        return sum(map(len, self.pieces))

    @property
    def weight(self) -> float:
        """About how many bytes one of `records` takes; 0.0 if it is unknown."""
        return sum(piece.nbytes for piece in self.pieces) / max(self.records, 1)

    @property
    def fetched(self) -> bool:
        return all(piece.fetched for piece in self.pieces)

    @property
    def spans(self) -> tuple[OffsetRange, ...]:
        """What a sink that wants "ranges" fetches, rejected records included: all but offsets that the log has lost."""
        pieces = ((each.first, each.until) for each in self.pieces if isinstance(each, Unfetched))
        return tuple(
            self.range._replace(first=first, until=until) for first, until in spans_of((), (*pieces, *self.left_out))
        )

    @cached_property
    def batches(self) -> tuple[pa.RecordBatch, ...]:
        """The records as columns (`kzconsumer.sinks.SCHEMA`). The first use loads pyarrow."""
        return tuple(piece.columns() for piece in self.pieces)

    def messages(self) -> Iterator[Message]:
        """The records one by one, each made when it is taken. Does not load pyarrow."""
        return chain.from_iterable(piece.messages() for piece in self.pieces)

    def without(self, offsets: Spans) -> RangeData:
        """The same range with the other records alone."""
        if not offsets:
            return self
        pieces = tuple(rest for piece in self.pieces for rest in piece.without(offsets))
        # Of those, the log may have lost some, which cannot be fetched.
        unfetched = [piece for piece in self.pieces if isinstance(piece, Unfetched)]
        cut = ((max(at.first, first), min(at.until, until)) for at in unfetched for first, until in offsets)
        left_out = spans_of((), (*self.left_out, *(span for span in cut if span[0] < span[1])))
        return msgspec.structs.replace(self, pieces=pieces, left_out=left_out)

    def between(self, first: int, until: int) -> RangeData:
        """Those of its records with `first <= offset < until`."""
        pieces = (piece.between(first, until) for piece in self.pieces)
        return msgspec.structs.replace(self, pieces=tuple(piece for piece in pieces if len(piece)), left_out=())


Found: TypeAlias = Callable[[Mapping[TopicPartition, Contents]], Awaitable[None]]
"""See `Batch`."""


class Batch(msgspec.Struct, frozen=True):
    """What one `write` makes durable: ranges of different partitions, never two of the same one.

    With `is_replay` it is one range that a member planned and did not commit: it may be written already, or that member
    may still be writing it. `steps` records which steps of a write are done; it is set if the ranges are planned.
    `follows` names what a replayable destination must have before it takes these ranges: of each partition the last
    range that was written and is known, of the same incarnation and epoch.

    `found` is set, too, if the ranges are planned. A sink that fetches for itself calls it with what it has read of
    them, once it has read all, and before it publishes anything. When it returns, the plans have number and checksum.
    If a replay finds other records than the member that planned the range, that is logged, or with `[offsets] reset`
    "fail" raises RangeChangedError. Raises StepNotRecordedError if the partitions are lost, ZooKeeperError. Then
    `write` must raise, too.
    """

    ranges: tuple[RangeData, ...]
    is_replay: bool = False
    steps: Steps | None = None
    follows: tuple[RangeIdentity, ...] = ()
    found: Found | None = None

    @property
    def records(self) -> int:
        return sum(part.records for part in self.ranges)


class Rejected(msgspec.Struct, frozen=True):
    """A record of a batch that cannot be used, why, and the class of errors by which `[rejected]` decides about it.

    `reason` names the column, if there is one, and has nothing of the content.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    error_class: str = "rejected"


class RecordsRejectedError(KzConsumerError):
    """Raised by `Sink.write`: these records cannot be used, and `[rejected]` decides about them.

    Everything else of the batch is durable. Of a replayable sink, and of one that fetches for itself, no range with
    such records is, perhaps none at all: the batch is written again without them.
    """

    def __init__(self, records: Iterable[Rejected]) -> None:
        self.records: tuple[Rejected, ...] = tuple(records)
        first = "".join(f"{at.topic}-{at.partition} offset {at.offset}: {at.reason}" for at in self.records[:1])
        others = f" (and {len(self.records) - 1} more records of the batch)" if len(self.records) > 1 else ""
        super().__init__(first + others or "no record of a batch was rejected")


class SinkContext(msgspec.Struct, frozen=True, kw_only=True):
    """The member that runs a sink, by its consumer id.

    `safe_until` gives the time on `kzconsumer.clock` until which no other member can own its partitions; after it a
    sink should not publish. `cluster` is the ZooKeeper connect string's chroot and `/cluster/id`. `settings` are all
    those of the member at its start, for a sink that fetches for itself. `rate_limit` gives that of `[fetch]` now.
    """

    group: str
    member: str
    cluster: str
    safe_until: Callable[[], float]
    settings: Settings | None = None
    rate_limit: Callable[[], int | None] | None = None


class Sink(Protocol):
    """Writes batches. Optional abilities are the attributes below and the protocols that follow it.

    `write` returns when the batch is durable, as a file is after `fsync`. When it raises, the member stops with nothing
    of the batch committed or, by `[sink] on_batch_failure`, its ranges are written again one by one. A slow `write` is
    the backpressure. It is never called twice at once. It is cancelled when the member must stop, and when all
    partitions of the batch have been lost: other members may be writing the same records then, and the next batch
    follows. A thread goes on, so wait for its end (`anyio.to_thread.run_sync` does, `asyncio.to_thread` does not).
    Records that cannot be used are named by raising RecordsRejectedError, once all the others are durable: `[rejected]`
    decides about each, and the batch is written after that. A replayable sink, and one that fetches for itself, raises
    it before it publishes anything of the ranges with such records. When each of them is a dead letter, or skipped,
    `write` is called with the rest. The offsets are stored in the plans of a replayable sink first, so every replay has
    the same records. A sink with `trial` need not know which records its destination refuses: see `Trying`.

    `wants = "ranges"` is for a sink that fetches for itself, instead of "columns", the default: the member only looks
    where the logs end. Its records are not counted: `[batch] max_records` counts offsets, and `max_bytes` about the
    bytes that they take in the log. It keeps to `[fetch] on_corrupt` and `rate_limit`.
    That a log has changed when a range is replayed is noticed if the sink calls `Batch.found`. `start_limit` is how
    many seconds entering the sink may take, if that is more than 15 minutes. `batch_bytes` limits batches like `[batch]
    max_bytes`, of which the smaller counts: a sink that gains nothing from large batches saves memory. With
    `due_records` records a batch is due at once; while another one is written, it grows up to `[batch] max_records`.
    `range_lost(part)` is called during `write` when one range of the batch is lost, which another member may write.
    `last_batch`, a mapping, is added to the log line of each batch. `status`, a mapping of JSON values, is shown on the
    status pages; texts that begin with http: or https: are links.

    A sink is **replayable** when publishing a range is atomic, the first publication wins and nothing is deleted, so
    that a range written twice, also by two members at once, is there once. It declares this by `fingerprint` and `has`
    (see `kzconsumer.offsets.start_rules.Destination`); with an empty fingerprint it is not replayable. `destination`, a
    text, names it in errors. Each range is planned in ZooKeeper before it is written, and the partition's next owner
    writes exactly that range first. With `remembers = True`, which means that `has` never forgets a range, a claim also
    asks for the last range that was committed, and does not consume the partition if that is missing. The claim cannot
    see a destination that is restored from a copy later. So `write` of such a sink raises DestinationWentBackError, and
    takes nothing, if the destination lacks a range of `Batch.follows`; it looks in the transaction that takes the
    ranges, or directly before. A range that was set aside counts as there. `has` may be
    called while `write` runs; it is cancelled, and the member stops, if it does not answer within a minute.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    async def write(self, batch: Batch) -> None: ...


@runtime_checkable
class Pulling(Protocol):
    """A sink that takes a batch only when something else asks it for one.

    `asked` is awaited when a batch is due, and returns when the sink takes one. Until then the batch grows up to its
    limits, nothing of it is planned, and its partitions may move at once.
    """

    async def asked(self) -> None: ...


@runtime_checkable
class SettingAside(Protocol):
    """A replayable sink that can exclude a range from ever being published.

    Used for a range that it cannot write and that `[sink] on_batch_failure` keeps in the quarantine, and for a planned
    range that the log has lost in part: what is left of it is written in a new epoch. True: from now on no member
    publishes it, not even one that is writing it at the moment; every `write` of it raises, and `has` does not have it.
    False: it is published. Without this a member that has lost the partition may publish what its successor has
    quarantined, or writes in the new epoch.
    """

    async def set_aside(self, part: RangeIdentity, records: int) -> bool: ...


@runtime_checkable
class Trying(Protocol):
    """A replayable sink whose records can be tried in parts, to find those that the destination refuses.

    `trial` does what `write` does of the batch, except that nothing is published and nothing stays. Where `write` or
    `trial` raises ContentRefusedError, a range is halved until the refused records are found; they are rejected as
    class "refused". Any other error ends the search, and the batch fails: an outage is never taken for a bad record.
    """

    async def trial(self, batch: Batch) -> None: ...


@runtime_checkable
class Checkable(Protocol):
    """A sink that can report, before it is entered, why entering it would fail.

    `check-config` and the daemon's start call `check`, which changes nothing. No server has been asked, so the
    context's `cluster` is empty. It raises ConfigError or PluginError for what a restart does not change, SinkError
    for the rest.
    """

    def check(self) -> None: ...


class SinkPlugin(Protocol):
    """What an entry point of `kzconsumer.sinks` names: a class or function that builds the sink.

    Raises `kzconsumer.errors.ConfigError` for options it cannot use (see `kzconsumer.settings.read_table`).
    """

    def __call__(self, options: Mapping[str, object], context: SinkContext) -> Sink: ...


# Optional parts of the interface: what a sink may report about its destination (`kzconsumer sink verify`, `replay`) and
# what it would write (`try`).


class QuarantinedRange(NamedTuple):
    """A range in the sink's quarantine, and its number of records."""

    identity: RangeIdentity
    records: int


class BadRecord(msgspec.Struct, frozen=True):
    """Where a record is that cannot be decoded, and why."""

    topic: str
    partition: int
    offset: int
    reason: str


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink would make of records: `columns` are names and types, cells what JSON can say of them."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[object, ...], ...]
    bad: tuple[BadRecord, ...]


@runtime_checkable
class Previewing(Protocol):
    """A sink that can show what it would write, for `kzconsumer sink try`. It has not been entered then.

    Nothing is published, marked or set aside. Raises ConfigError for options that turn out to be wrong, SinkError.
    """

    async def preview(self, batch: Batch) -> Preview: ...


class HeldRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range that a destination's ledger has: records that came in, rows that went out, records set aside.

    Older ones that follow each other may be listed as one: then `ranges` is their number, and `gaps` which offsets
    between them are not there, in order. `rows` are those counted in the destination itself (None where that cannot be
    done), `faults` what is wrong there.
    """

    identity: RangeIdentity
    records_in: int
    records_out: int
    records_quarantined: int
    rows: int | None = None
    faults: tuple[str, ...] = ()
    ranges: int = 1
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def runs(self) -> list[RangeIdentity]:
        """The offsets that are there, in order: one range, unless there are gaps."""
        ends = [self.identity.first, *(end for gap in self.gaps for end in gap), self.identity.until]
        return [RangeIdentity(*self.identity[:4], *ends[at : at + 2]) for at in range(0, len(ends), 2)]


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """What a destination holds: `strays` are what its readers see and no range stands for, `leftovers` what they do not
    see and is not used any more. A snapshot, except for `rows`, `faults` and `strays`."""

    destination: str
    fingerprint: str
    ranges: tuple[HeldRange, ...]
    strays: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()


@runtime_checkable
class Accountable(Protocol):
    """A replayable sink that can list what its destination holds, for `kzconsumer sink verify` and `sink replay`.

    It need not have been entered; nothing is changed, made or marked. Members may be writing meanwhile: a range that is
    there whole when this is called is listed, one that is only under way is neither listed nor a stray. Without
    `count_rows` only the ledger is read. Raises SinkError when there is no destination, or it is another group's.
    """

    async def holdings(self, *, count_rows: bool) -> Holdings: ...


class Redirectable(Protocol):
    """A plugin whose sink can be given another target of the same kind, for `kzconsumer sink replay`.

    The plugin itself has this, not the sink. Returns the options with everything that is written going to `into`.
    """

    def elsewhere(self, options: Mapping[str, object], into: str) -> Mapping[str, object]: ...
