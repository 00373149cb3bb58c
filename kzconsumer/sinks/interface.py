"""The interface between the member and a sink, which makes records durable.

A plugin is an entry point of the group `kzconsumer.sinks` that names a callable `(options, context) -> Sink`. Calling
it checks the options, without side effects outside the process; entering the sink starts it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, runtime_checkable

import msgspec

from kzconsumer.errors import KzConsumerError
from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition
from kzconsumer.records.contents import Contents
from kzconsumer.records.forms import Records, Unfetched
from kzconsumer.registry.offset_list import Spans, spans_of
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.steps import Steps
from kzconsumer.streams.message import Message

if TYPE_CHECKING:
    import pyarrow as pa  # loaded by the sinks that take columns


class RangeData(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Consecutive records of one partition: every record of the log with `first <= offset < until`.

    `pieces` hold them in offset order; sinks take them as columns (`batches`) or one by one (`messages`). Offsets may
    have gaps (compaction, control records). `incarnation` is the czxid of `/brokers/topics/<topic>` (it distinguishes a
    recreated topic from its predecessor), `epoch` the partition's reset epoch.

    For a sink that wants "raw", there are no pieces and `raw` has the bytes instead: pieces of one or more whole
    batches (message sets, in magic 0 and 1) in offset order, framing and checksums good, nothing decoded; control
    batches and aborted transactions are among them. Batches are never cut: the first may begin below `first`, when its
    first records were consumed before. The pieces may be views of a whole response: keep them no longer than needed.

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
    raw: tuple[memoryview, ...] | None = None
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
        """Number of records; where they are not counted (raw bytes, ranges), the number of offsets."""
        return self.until - self.first if self.raw is not None else sum(map(len, self.pieces))

    @property
    def fetched(self) -> bool:
        return all(piece.fetched for piece in self.pieces)

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

    Everything else of the batch is durable. In a replayable sink nothing is, of the ranges with such records: they are
    written again without them.
    """

    def __init__(self, records: Iterable[Rejected]) -> None:
        self.records = tuple(records)
        super().__init__(f"{len(self.records)} records of a batch were rejected")


class SinkContext(msgspec.Struct, frozen=True, kw_only=True):
    """The member that runs a sink.

    `safe_until` gives the time on `kzconsumer.clock` until which no other member can own its partitions; after it a
    sink should not publish. `cluster` is the ZooKeeper connect string's chroot and `/cluster/id`. `settings` are all
    those of the member, for a sink that fetches for itself.
    """

    group: str
    member: str
    cluster: str
    safe_until: Callable[[], float]
    settings: Settings | None = None


class Sink(Protocol):
    """Writes batches. Optional abilities are the attributes below and the protocols that follow it.

    `write` returns when the batch is durable, as a file is after `fsync`. When it raises, the member stops with nothing
    of the batch committed or, by `[sink] on_batch_failure`, its ranges are written again one by one. A slow `write` is
    the backpressure. It is never called twice at once. It is cancelled when the member must stop, and when all
    partitions of the batch have been lost: other members may be writing the same records then, and the next batch
    follows. A thread goes on, so wait for its end (`anyio.to_thread.run_sync` does, `asyncio.to_thread` does not).
    Records that cannot be used are named by raising RecordsRejectedError, once all the others are durable: `[rejected]`
    decides about each, and the batch is written after that. A sink of bytes cannot reject single records. A replayable
    sink raises it before it publishes anything of the ranges with such records. When each of them is a dead letter, or
    skipped, their offsets are stored in the plans of the ranges, and `write` is called with the rest: so every replay
    has the same records. A sink with `trial` need not know which records its destination refuses: see `Trying`.

    `wants = "raw"` asks for bytes instead of columns ("columns"). A sink of bytes also gets ranges without bytes (`raw`
    is empty), which the log no longer has. `wants = "ranges"` is for a sink that fetches for itself: the member only
    looks where the logs end. Its records are not counted, so `[batch] max_records` counts offsets, `max_bytes` nothing.
    That a log has changed when a range is replayed is noticed if the sink calls `Batch.found`. `start_limit` is how
    many seconds entering the sink may take, if that is more than 15 minutes. `batch_bytes` limits batches like `[batch]
    max_bytes`, of which the smaller counts: a sink that gains nothing from large batches saves memory. With
    `due_records` records a batch is due at once; while another one is written, it grows up to `[batch] max_records`.
    `range_lost(part)` is called during `write` when one range of the batch is lost, which another member may write.
    `last_batch`, a mapping, is added to the log line of each batch. `status`, a mapping of JSON values, is shown on the
    status pages; texts that begin with http: or https: are links.

    A sink is **replayable** when publishing a range is atomic, the first publication wins and nothing is deleted, so
    that a range written twice, also by two members at once, is there once. It declares this by `fingerprint` and `has`
    (see `kzconsumer.offsets.destination.Destination`); with an empty fingerprint it is not replayable. `destination`, a
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
class Preparing(Protocol):
    """A sink that does work ahead of `write`, such as spooling.

    `prepare` is called with the next batch while `write` runs with the one before, never with two ahead. `write` then
    gets that batch, or the rest of it if partitions have been lost, or a later one if all have: at the next `prepare`
    discard what is still unwritten. Before that, a failed batch may be written again. The ranges are not planned yet:
    nothing may reach the destination. An exception of `prepare` is logged, and `write` is called nevertheless.
    """

    async def prepare(self, batch: Batch) -> None: ...


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

    Used for a range that it cannot write and that `[sink] on_batch_failure` keeps in the quarantine. True: from now on
    no member publishes it, not even one that is writing it at the moment; every `write` of it raises, and `has` does
    not have it. False: it is published. Without this a member that has lost the partition may publish what its
    successor has quarantined.
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
