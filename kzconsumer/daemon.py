"""The daemon: one member, one sink, signals, and an end in order. The composition root of `kzconsumer --config`.

Owns nothing beyond a run. The sink starts before the group is joined (a member that cannot write must not own), and is
closed before the last commit and the end of the session: closing a session while our own worker still writes would let
two members write the same range.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import structlog

from kzconsumer.clock import now
from kzconsumer.consumer import ConsumerConnector
from kzconsumer.errors import AlreadyRunning, ConfigError, KzConsumerError, NotPermitted, PluginError, sole_cause
from kzconsumer.instance_lock import instance_lock, lock_path
from kzconsumer.logs.facts import facts
from kzconsumer.logs.setup import configure, finish
from kzconsumer.model import TopicPartition
from kzconsumer.registry.cluster_id import cluster_identity
from kzconsumer.registry.run_record import GroupRun
from kzconsumer.reload import Change, compare, obey_reloads
from kzconsumer.runs.runs import is_over
from kzconsumer.sd_notify import Manager
from kzconsumer.service import Service
from kzconsumer.sessions import Sessions
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.configured import configured_sink
from kzconsumer.sinks.destination import destination_of
from kzconsumer.sinks.interface import SinkContext, wanted_by
from kzconsumer.sinks.planning import RangePlans
from kzconsumer.sinks.quarantine import Quarantine
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.status.observer import Observer
from kzconsumer.streams.kafka_stream import KafkaStream
from kzconsumer.zookeeper.lease import Lease

log = structlog.get_logger("kzconsumer")

# A wrapper and the terminal often send the same signal both: within this time it is one.
ONE_SIGNAL = 0.2
# The second signal leaves this long to tell ZooKeeper that we are gone.
AT_ONCE = 0.2
# Whoever has just started a member wants to know whether it gets anywhere.
FIRST_PROGRESS = 5.0
# What a sink may take to start, with all its attempts, as announced to the service manager; more if the sink says so.
SINK_START = 900.0
# What no cancellation reaches (a thread inside a system call) ends with the process, this long after the deadline.
GRACE = 1.0
# EX_TEMPFAIL of sysexits.h: the run goes on when a member is started again.
EXIT_UNFINISHED = 75
# Between two calls of `show`, in seconds.
SHOW = 0.5


def run(settings: Settings, load: Callable[[], Settings], show: Callable[[int, int], None] | None = None) -> int:
    """Consume until a signal, or to the end of a run. Returns the exit status: 0 after an orderly stop, 1 after a
    failure, which it has told (that the last commit could not be made is one), 75 when a run is not at its end.

    `load` gives the settings anew when a SIGHUP asks for them; it raises ConfigError or PluginError, and may block.
    `show` is called now and then with how much this member has read of its part of a run, and how much that is.
    The settings have been checked (`cli/checks`). Raises ConfigError and PluginError for what a server or the start of
    the sink shows to be wrong with them, AlreadyRunning.
    """
    manager = Manager.from_environment(os.environ, os.getpid())
    try:
        with instance_lock(lock_path(settings.service.lock, settings.source, os.environ)):
            return anyio.run(_serve, settings, load, manager, show)
    except (AlreadyRunning, ConfigError, PluginError):
        raise
    except NotPermitted as error:
        raise ConfigError([f"{settings.source}: [zookeeper]: {error}"]) from None
    except KzConsumerError as error:
        log.error("stopped by a failure", error=type(error).__name__, reason=str(error))
        for note in getattr(error, "__notes__", ()):
            log.error("stopped by another failure, too", reason=note)
        if error.__cause__ is not None:
            log.debug("caused by", exc_info=error.__cause__)
        return 1
    finally:
        finish()


async def _serve(
    settings: Settings,
    load: Callable[[], Settings],
    manager: Manager,
    show: Callable[[int, int], None] | None,
) -> int:
    while True:
        daemon = Daemon(settings, load, manager, show)
        if (status := await daemon.run()) is not None:
            return status
        settings = daemon.settings
        if settings.subscription.stop_at is None:
            log.info("joining again, for other topics")
        else:
            log.info("a run that others had begun is over, now begins ours", run=settings.subscription.run)


class Daemon:
    """One run, from start to the end that a signal or a failure asks for."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        manager: Manager,
        show: Callable[[int, int], None] | None = None,
    ) -> None:
        self.settings = settings
        """Those in effect: a reload changes some."""
        self._load = load
        self._show = show
        self._ends_with = [signal.SIGTERM, signal.SIGINT]
        if sys.stdin is not None and sys.stdin.isatty():
            self._ends_with.append(signal.SIGHUP)  # the terminal is gone; a daemon without one reads its settings anew
        self._lease = Lease()
        self._service = Service(
            manager, self._lease, settings.zookeeper.session_timeout, settings.service.stalled_after
        )
        self._observer = Observer(lambda: self.settings, self._service, self._lease)
        self._runner: SinkRunner | None = None
        self._reconfigured = anyio.Event()
        self._consumer: ConsumerConnector | None = None
        self._sessions: Sessions | None = None
        self._joined = anyio.Event()
        self._stop = anyio.Event()
        self._deadline = 0.0
        self._goes_on = False  # after the end: with a run of ours, or with other topics
        self._over = False  # that run, before anything was started
        self._work = anyio.CancelScope()
        self._last_resort: threading.Timer | None = None

    async def run(self) -> int | None:
        """The exit status; None when the next one goes on: a run is over that is not ours, or there are other topics.

        Raises KzConsumerError for a failure that ends the member.
        """
        facts()["group"] = self.settings.group.id
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._obey_signals)
                tasks.start_soon(self._service.run)
                if signal.SIGHUP not in self._ends_with:
                    tasks.start_soon(obey_reloads, self._joined, self._reload, self._apply, self._rejoin, self._service)
                async with self._serving():
                    with self._work:
                        await self._consume()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = sole_cause(group)
            self._service.ended(str(error))
            raise error from error.__cause__
        finally:
            if self._last_resort is not None:
                self._last_resort.cancel()
        log.info("stopped")
        status = self._status()
        if status is not None:
            self._service.ended(None)
        return status

    def _status(self) -> int | None:
        sessions, wanted = self._sessions, self.settings.subscription
        if sessions is not None and sessions.left_uncommitted:
            return 1
        if wanted.stop_at is None:
            return None if self._goes_on else 0
        if self._over:
            return 0
        run = sessions.run if sessions is not None else None
        if sessions is not None and sessions.finished.is_set() and self._is_ours(run):
            return 0
        if self._goes_on:
            return None
        log.error("stopped before the end of the run: start it again to go on", run=run.id if run else wanted.run)
        return EXIT_UNFINISHED

    def _is_ours(self, run: GroupRun | None) -> bool:
        wanted = self.settings.subscription
        if run is None:
            return False
        return run.id == wanted.run if wanted.run is not None else run.stop_at == wanted.stop_at

    async def _consume(self) -> None:
        settings = self.settings
        chosen = settings.require_daemon()
        self._service.starting("waiting for ZooKeeper and a broker")
        context = SinkContext(
            group=settings.group.id,
            member=settings.group.id,
            cluster=await cluster_identity(settings.zookeeper),
            safe_until=lambda: self._lease.safe_until,
        )
        sink = configured_sink(settings, context)
        destination = destination_of(chosen.plugin, sink)
        in_run = settings.subscription.stop_at is not None
        sessions = Sessions(settings, lease=self._lease, wants=wanted_by(sink), destination=destination)
        self._sessions, self._consumer = sessions, ConsumerConnector(sessions)
        if in_run and await is_over(settings, self._is_ours, replayable=destination is not None):
            log.info("nothing is left to do: the sink is not started")
            self._over = True
            return
        plans = None
        if destination is not None:
            refuses_loss = settings.offsets.reset == "fail"
            plans = RangePlans(sessions, destination, settings.fetch.isolation, refuses_loss=refuses_loss)
        aside = Quarantine(Path(chosen.quarantine), chosen.plugin) if chosen.quarantine is not None else None
        quarantine = aside if chosen.on_batch_failure == "quarantine" else None
        self._runner = runner = SinkRunner(
            chosen.plugin, sink, settings.batch, sessions, plans, quarantine, sessions.rejects.settle
        )
        async with anyio.create_task_group() as tasks:
            longest = max(SINK_START, getattr(sink, "start_limit", 0.0))
            self._service.starting(f"starting the sink {chosen.plugin}", longest)
            await tasks.start(runner.run)
            self._service.starting("joining the group")
            async with sessions.running():
                self._consumer.pause(settings.subscription.paused_partitions)
                runner.feed([stream.queue for stream in await self._join(self._consumer)])
                self._joined.set()
                self._service.ready(sessions)
                self._observer.begin(sessions, runner)
                tasks.start_soon(self._tell_progress, sessions)
                if self._show is not None:
                    tasks.start_soon(self._show_run, sessions, self._show)
                tasks.start_soon(self._stop_when_finished, sessions)
                await self._stop.wait()
                sessions.stop_fetching()
                tasks.start_soon(self._end_with_lease, runner)
                await runner.stop(self._deadline - now() - self._reserve())
                sessions.leave_within(self._deadline - now())
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """What is not asked for costs no import."""
        if self.settings.status.listen is None:
            yield
            return
        from kzconsumer.status.server import serving

        async with serving(self._observer):
            yield

    async def _join(self, consumer: ConsumerConnector) -> list[KafkaStream]:
        wanted = self.settings.subscription
        if wanted.filter is not None:
            return await consumer.create_message_streams_by_filter(wanted.filter, wanted.streams)
        streams = await consumer.create_message_streams(wanted.topics)
        return [stream for threads in streams.values() for stream in threads]

    async def _end_with_lease(self, runner: SinkRunner) -> None:
        """Once stopping: nothing that ends after the lease can be committed, so no longer than a reconnect takes."""
        while True:
            with anyio.move_on_after(self.settings.zookeeper.session_timeout / 3) as waiting:
                await self._lease.wait()
            if waiting.cancelled_caught:
                break
            await anyio.sleep(self._lease.safe_until - now())
        await runner.stop(0)

    def _reserve(self) -> float:
        """What a stop keeps back from the batch in flight: the worker's end, the last commit, closing the session."""
        needed = 1.0 + 1.0 + self.settings.zookeeper.session_timeout / 3
        return min(needed, self.settings.stop.deadline / 3)

    async def _obey_signals(self) -> None:
        with anyio.open_signal_receiver(*self._ends_with) as signals:
            first = -math.inf
            async for number in signals:
                name = signal.Signals(number).name
                if now() - first < ONE_SIGNAL:
                    continue
                if not self._stop.is_set() or self._goes_on:
                    first = now()
                    log.info("stopping", signal=name, deadline=self.settings.stop.deadline)
                    self._goes_on = False
                    if self._stop.is_set():
                        self._service.stopping(self._deadline + GRACE)
                    else:
                        self._begin_stop()
                else:
                    log.warning("stopping at once", signal=name)
                    if self._sessions is not None:
                        self._sessions.leave_within(AT_ONCE)
                    self._work.cancel()

    async def _stop_when_finished(self, sessions: Sessions) -> None:
        await sessions.finished.wait()
        if not self._stop.is_set():
            self._goes_on = self.settings.subscription.stop_at is not None and not self._is_ours(sessions.run)
            self._begin_stop()

    def _begin_stop(self) -> None:
        deadline = self.settings.stop.deadline
        self._deadline = now() + deadline
        if not self._goes_on:
            self._service.stopping(self._deadline + GRACE)
        self._stop.set()
        self._last_resort = threading.Timer(deadline + GRACE, os._exit, [1])
        self._last_resort.daemon = True
        self._last_resort.start()
        if not self._joined.is_set():
            self._work.cancel()  # nothing is owned or written yet: nothing to finish

    async def _show_run(self, sessions: Sessions, show: Callable[[int, int], None]) -> None:
        """Offsets of what this member has had of the run: a partition that goes to another member leaves its part."""
        begun: dict[TopicPartition, int] = {}
        while True:
            await anyio.sleep(SHOW)
            if (run := sessions.run) is None:
                continue
            done = total = 0
            for at in sessions.positions():
                end = run.end(at.topic_partition, at.incarnation)
                if end is not None:
                    first = min(begun.setdefault(at.topic_partition, at.processed), end)
                    done += min(at.processed, end) - first
                    total += end - first
            show(done, total)

    def _reload(self) -> Change:
        """What reading the settings anew would change; blocks."""
        return compare(self.settings, self._load())

    def _apply(self, settings: Settings) -> None:
        """What `reload.LIVE` lists, in effect from now on; everything else in the settings is as before."""
        assert self._runner and self._sessions and self._consumer  # noqa: PT018  (obeyed once joined)
        before, self.settings = self.settings.subscription.paused_partitions, settings
        self._consumer.resume(before - settings.subscription.paused_partitions)
        self._consumer.pause(settings.subscription.paused_partitions - before)
        configure(settings.log.level, settings.log.format)
        self._runner.limit(settings.batch)
        self._sessions.reconfigure(settings)
        self._service.stalled_after = settings.service.stalled_after
        self._reconfigured.set()
        self._reconfigured = anyio.Event()

    def _rejoin(self) -> None:
        if not self._stop.is_set():
            self._goes_on = True
            self._begin_stop()

    async def _tell_progress(self, sessions: Sessions) -> None:
        """A line now and then: how much is owned, how far behind, how fast; and each partition's positions at debug."""
        before: dict[tuple[str, int], int] = {}
        pause = min(self.settings.log.progress_interval, FIRST_PROGRESS)
        told = now()
        while True:
            with anyio.move_on_after(pause):
                await self._reconfigured.wait()
            passed, told = now() - told, now()
            positions = sessions.positions()
            done = {(at.topic, at.partition): at.processed for at in positions}
            advanced = sum(until - before[key] for key, until in done.items() if key in before)
            known = [at for at in positions if at.high_watermark is not None]
            log.info(
                "progress",
                owned=len(positions),
                behind=sum(max(0, (at.high_watermark or 0) - at.processed) for at in known) if known else None,
                per_second=round(advanced / passed) if before else None,
                lease=self._lease.held,
                batch=self._runner.status.told() if self._runner and self._runner.status else None,
            )
            log.debug("positions", partitions=[msgspec.structs.asdict(at) for at in positions])
            before = done
            pause = self.settings.log.progress_interval
