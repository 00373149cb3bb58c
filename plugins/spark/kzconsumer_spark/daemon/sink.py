"""The sink `spark`: has the worker process write each batch, which Spark's tasks fetch, with retries.

The event loop never waits for py4j or the JVM, and a worker that dies does not cost the membership. No Spark session is
ever made in this process.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, Self

import anyio
import anyio.to_thread
import msgspec

from kzconsumer.brokers.protocol.error_codes import may_pass
from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachableError,
    ConfigError,
    ConnectionLostError,
    ContentRefusedError,
    DestinationWentBackError,
    SinkError,
    ZooKeeperError,
    ZooKeeperUnreachableError,
)
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy
from kzconsumer.fetcher.range_reader import range_reader
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import OffsetRange, RangeIdentity, Wants, count_offsets
from kzconsumer.registry.cluster import address_of
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import Batch, Holdings, Preview, RecordsRejectedError, SinkContext, StepNotRecordedError
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.range_names import TargetOwner, fingerprint, scope
from kzconsumer_spark.columns.schema_files import check_files
from kzconsumer_spark.daemon import marked_destination, worker_process
from kzconsumer_spark.daemon.marked_destination import (
    MarkedDestination,
    answer,
    destination_for,
    mark,
)
from kzconsumer_spark.daemon.requirements import make_scratch, require_conf
from kzconsumer_spark.daemon.sink_options import WHERE, read_options, redirected
from kzconsumer_spark.daemon.worker_process import WorkerDied, Workers, finite, worker_environment
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from kzconsumer_spark.worker_protocol.messages import (
    BatchRange,
    Done,
    Failed,
    RangesRead,
    Recorded,
    RunBatch,
    StartWorker,
    StepDone,
    To,
    ToDelta,
    ToFunction,
    ToIceberg,
)
from kzconsumer_spark.worker_protocol.spark_settings import is_cluster, time_zone

_log = get_logger("kzconsumer.spark")


class SparkSink:
    """Writes batches through Spark's foreachBatch, in a process of its own.

    Options: `kzconsumer_spark.daemon.sink_options.SparkOptions`. Entering starts Spark (about ten seconds). It raises
    ConfigError for a target of another group and for settings that Spark refuses, PluginError without Java or PySpark,
    SinkError if Spark did not start in as many attempts as a batch has. `write` raises SinkError after the last
    attempt. When `write` is cancelled, the worker and its JVM are killed before it returns, so that nothing is
    published afterwards.
    """

    wants: Final[Wants] = "ranges"

    def __init__(self, options: Mapping[str, object], context: SinkContext) -> None:
        self._options = read_options(options)
        self._context = context
        settings = _settings(context)
        self._log = settings.log
        self._kafka = Kafka.of(settings, elsewhere=is_cluster(self._options.master))
        self._corrupt = CorruptBatches(settings)
        self._rate_limit = context.rate_limit or (lambda: settings.fetch.rate_limit)
        self._owner = TargetOwner(cluster=context.cluster, group=context.group)
        self.target = self._checked()
        # Milliseconds, then counted up: in a later run a function gets other batch_ids, unless the clock is set back.
        self._next_batch = time.time_ns() // 1_000_000
        self.workers: Workers | None = None
        """Once the sink is entered."""
        self.last_batch: dict[str, object] = {}
        self._outage: str | None = None
        self._stack = AsyncExitStack()

    def _checked(self) -> MarkedDestination:
        """The destination. Raises ConfigError with its faults and those of the files that the options name."""
        faults: list[str] = []
        try:
            check_files(self._options.columns)
        except ValueError as error:
            faults.append(f"{WHERE} {error}")
        try:
            destination = destination_for(self._to())
        except ConfigError as error:
            raise ConfigError([*faults, *error.faults]) from error
        if faults:
            raise ConfigError(faults)
        return destination

    def _to(self) -> To:
        """With the hash of the owner before the cluster had an id, for tables: they store owners only as hashes."""
        to, address = self._options.to, address_of(_settings(self._context))
        if isinstance(to, ToDelta | ToIceberg) and address != self._owner.cluster:
            former = scope(address, self._owner.group, self._owner.sink)
            return msgspec.structs.replace(to, former_scope=former)
        return to

    def check(self) -> None:
        """See `kzconsumer.sinks.interface.Checkable`. Raises PluginError without Java or PySpark, ConfigError."""
        worker_environment(self._options.conf)
        require_conf(self._options.master, self._options.conf)
        self.target.require_usable(self._options.conf)

    def __repr__(self) -> str:
        return f"SparkSink({self._options.destination}, {self.workers}, next batch {self._next_batch})"

    async def __aenter__(self) -> Self:
        environment = worker_environment(self._options.conf, self._options.master)
        async with AsyncExitStack() as stack:
            scratch = await anyio.to_thread.run_sync(self._prepare)
            stack.push_async_callback(_remove, scratch)
            self.workers = Workers(self._options, environment, scratch.path, self._start, self._context.safe_until)
            await stack.enter_async_context(self.workers)
            await self.workers.start_first(self._next_batch)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.workers is not None and kind is None:
                await self.workers.stop()
        finally:
            await self._stack.aclose()

    @property
    def start_limit(self) -> float:
        """See `kzconsumer.sinks.interface.Sink`."""
        return worker_process.start_limit(self._options)

    @property
    def status(self) -> Mapping[str, object]:
        """See `kzconsumer.sinks.interface.Sink`: Spark's application, its pages, what it reports of the last batch, and
        why the batch waits for brokers."""
        found = self.workers.status if self.workers is not None else {}
        return {"waits_for_brokers": self._outage, **found} if self._outage else found

    @property
    def destination(self) -> str:
        """As errors name it."""
        return self.target.to.described

    @property
    def fingerprint(self) -> str:
        """That of the destination and of the settings that shape rows; empty for one that cannot be replayed."""
        found, columns = self.target.fingerprint, self._options.columns
        shape = () if columns.change_nothing else columns.shape
        zone = time_zone(self._options.conf)
        shape += () if zone == "UTC" else (zone,)
        return fingerprint(found, shape) if found and shape else found

    @property
    def remembers(self) -> bool:
        """See `kzconsumer.offsets.start_rules.Destination`: a function has no ledger."""
        return self.target.remembers

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        """Those that the destination's ledger has. Raises SinkError after the last attempt."""
        return await answer(partial(self.target.has, ranges), self._options)

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """See `kzconsumer.sinks.interface.SettingAside`. Raises as `has`."""
        return await answer(partial(self.target.set_aside, part, records), self._options)

    async def write(self, batch: Batch) -> None:
        if not batch.ranges or (not self.fingerprint and not batch.records):
            return
        await self._run(self._numbered(batch), batch)

    async def trial(self, batch: Batch) -> None:
        """See `kzconsumer.sinks.interface.Trying`. What `write` itself rejects is not refused."""
        failed = await self._attempt(msgspec.structs.replace(self._numbered(batch), is_trial=True), batch)
        if failed is not None and not failed.rejected:
            raise (ContentRefusedError if failed.refused else SinkError)(failed.error)

    def _numbered(self, batch: Batch) -> RunBatch:
        number = self._next_batch
        self._next_batch += 1
        self.last_batch = {"spark_batch": number}
        ranges = tuple(map(BatchRange.of, batch.ranges))
        return RunBatch(number=number, ranges=ranges, is_replay=batch.is_replay, follows=batch.follows)

    @staticmethod
    def elsewhere(options: Mapping[str, object], into: str) -> Mapping[str, object]:
        """The same sink with another directory or table, and with a quarantine of its own."""
        return redirected(read_options(options), options, into)

    async def holdings(self, *, count_rows: bool) -> Holdings:
        """See `kzconsumer.sinks.interface.Accountable`. If the sink is entered, decisions are carried out first."""
        finish = self.workers is not None
        find = partial(self.target.find, self._owner)
        held = partial(marked_destination.held, self.target, find, self._options, finish=finish, count_rows=count_rows)
        ranges, strays, leftovers = await anyio.to_thread.run_sync(held)
        return Holdings(
            destination=self.destination,
            fingerprint=self.fingerprint,
            ranges=ranges,
            strays=strays,
            leftovers=leftovers,
        )

    async def preview(self, batch: Batch) -> Preview:
        """See `kzconsumer.sinks.interface.Previewing`. Uses a Spark of its own; the target is not read or written."""
        return await marked_destination.preview(batch, self._options, self._start)

    async def _run(self, batch: RunBatch, planned: Batch) -> None:
        for attempt, pause in self._options.tries():
            failed = await self._attempt(batch, planned)
            if failed is None:
                return
            if failed.rejected:
                raise RecordsRejectedError(failed.rejected)
            if failed.refused and not isinstance(self.target.to, ToFunction):
                raise ContentRefusedError(failed.error)
            if failed.lacks is not None:  # another attempt would find the same
                raise DestinationWentBackError(failed.lacks, failed.ends, self.destination)
            reason = failed.error
            _log.warning("spark batch failed", batch=batch.number, attempt=attempt, error=reason)
            await anyio.sleep(pause)
        ranges = ", ".join(str(part.range) for part in batch.ranges)
        raise SinkError(f"Spark could not write {ranges} in {self._options.attempts} attempts: {reason}")

    async def _attempt(self, batch: RunBatch, planned: Batch) -> Failed | None:
        """One attempt, which waits for brokers as a member that fetches does. How it failed, or None."""
        pauses = self._options.pauses()
        self._corrupt.begin(part.range for part in batch.ranges)
        try:
            while (failed := await self._written(batch, planned)) is not None:
                outage = failed.error if failed.outage else None
                if failed.corrupt is not None:
                    try:
                        if await self._corrupt.carry_out(failed.corrupt):
                            continue
                        return failed
                    except (BrokersUnreachableError, ConnectionLostError, ZooKeeperUnreachableError) as error:
                        outage = str(error)
                    except BrokerError as error:
                        if not may_pass(error):
                            raise
                        outage = str(error)
                if outage is None:
                    break
                self._outage = outage
                _log.warning("brokers unreachable, batch waits", batch=batch.number, error=outage)
                await anyio.sleep(next(pauses))
        finally:
            self._outage = None
        return failed

    async def _written(self, batch: RunBatch, planned: Batch) -> Failed | None:
        """Have the batch written once, by a new worker if the last one died. How it failed, or None."""
        assert self.workers is not None
        ranges = tuple(map(self._corrupt.without, batch.ranges))
        batch = msgspec.structs.replace(batch, ranges=ranges, rate_limit=self._rate_limit())
        if planned.steps is not None:
            batch = msgspec.structs.replace(batch, steps=planned.steps.done)
        # The worker publishes only once its last question is answered: what its tasks have read is in the plans then
        # (`recorded`). If this call ends before there is an outcome, since it is cancelled or a replay finds other
        # records than were planned, the worker is ended first. It may be about to publish, and the next attempt, which
        # gets a worker of its own, must not run beside it.
        try:
            worker = await self.workers.take(batch.number)
            await worker.send(batch)
            event = await worker.receive()
            while isinstance(event, StepDone | RangesRead):
                await worker.send(await recorded(event, planned))
                event = await worker.receive()
        except WorkerDied as error:
            await self.workers.close()
            return Failed(number=batch.number, error=str(error))
        except BaseException:
            await self.workers.close()
            raise
        match event:
            case Done(number=batch.number) if event.published + event.present == len(batch.ranges):
                self.last_batch["foreach_batch"] = round(event.seconds, 3)
                return None
            case Failed():
                return event
        raise AssertionError(f"batch {batch.number} answered by {event!r}")

    def _start(self, scratch: str, next_batch: int) -> StartWorker:
        return StartWorker(
            scratch=scratch,
            master=self._options.master,
            conf=dict(self._options.conf),
            destination=self.target.to,
            next_batch=next_batch,
            safe_until=finite(self._context.safe_until()),
            columns=self._options.columns,
            name=self._context.group,
            ui=self._options.ui,
            event_log=self._options.event_log,
            scope=scope(self._context.cluster, self._context.group, "spark"),
            kafka=self._kafka,
            log_level=self._log.level,
            log_format=self._log.format,
        )

    def _prepare(self) -> PrivateDirectory:
        mark(self.target, self._owner)
        return make_scratch(self._options)


def _settings(context: SinkContext) -> Settings:
    """Raises ConfigError if there are none of a member."""
    if context.settings is None:
        raise ConfigError([f"{WHERE}: the sink needs the settings of a member, whose records Spark fetches"])
    return context.settings


async def _remove(scratch: PrivateDirectory) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(scratch.remove)


async def recorded(event: StepDone | RangesRead, batch: Batch) -> Recorded:
    """Store what the worker asks for, and answer it.

    Raises RangeChangedError: the worker has not published anything of the batch, and must not.
    """
    try:
        if isinstance(event, RangesRead):
            found = zip(batch.ranges, event.contents, strict=True)
            if batch.found is not None:
                await batch.found({part.topic_partition: each for part, each in found if each is not None})
        elif batch.steps is not None:
            await batch.steps.record(event.step)
        else:
            return Recorded(error=f'step "{event.step}" is not recorded: the batch is not planned')
    except (StepNotRecordedError, ZooKeeperError, ValueError) as error:
        return Recorded(error=str(error))
    return Recorded()


# Corrupt batches that tasks have met: the member passes over them, as `[fetch] on_corrupt` says, and logs them.
#
# A task that meets one fails, so nothing of its batch is published before that is decided. The next attempt fetches
# what is before and behind it.


class CorruptBatches:
    """Those of the ranges in hand."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._policy = CorruptPolicy(settings.fetch)
        self._passed: list[OffsetRange] = []

    def begin(self, ranges: Iterable[OffsetRange]) -> None:
        """Forget those of other ranges; these may be written again."""
        whole = [*ranges]
        self._passed = [each for each in self._passed if any(_overlap(each, part) for part in whole)]

    async def carry_out(self, span: OffsetRange) -> bool:
        """Pass over the batch at the beginning of `span`; False if it can be read now, as from another leader.

        Raises UnusableBatchError if there is no way over it, KzConsumerError if it cannot be set aside; as
        `range_reader` and `RangeReader.way_over` for servers that do not answer.
        """
        async with range_reader(self._settings) as reader:
            until = await reader.way_over(span, self._policy)
        if until > span.first:
            self.pass_over(span._replace(until=until))
        return until > span.first

    def pass_over(self, span: OffsetRange) -> None:
        """Fetch nothing of it."""
        self._passed.append(span)

    def without(self, part: BatchRange) -> BatchRange:
        """What is to be fetched of the range: nothing if all its records are rejected or passed over."""
        spans = self._rest(part.spans)
        rejected = self._rest(part.range._replace(first=first, until=until) for first, until in part.left_out)
        records = count_offsets(spans) - count_offsets(rejected)
        left_out = tuple((each.first, each.until) for each in rejected)
        return msgspec.structs.replace(part, spans=spans if records else (), left_out=left_out, records=records)

    def _rest(self, spans: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        for passed in self._passed:
            spans = [rest for span in spans for rest in _outside(span, passed)]
        return tuple(spans)


def _overlap(one: OffsetRange, other: OffsetRange) -> bool:
    return one.topic_partition == other.topic_partition and one.first < other.until and other.first < one.until


def _outside(span: OffsetRange, passed: OffsetRange) -> Iterator[OffsetRange]:
    if not _overlap(span, passed):
        yield span
        return
    if span.first < passed.first:
        yield span._replace(until=passed.first)
    if passed.until < span.until:
        yield span._replace(first=passed.until)
