"""The daemon: one member and one sink, from start to an orderly stop.

The sink starts before the member joins, since a member that cannot write must not own partitions. It is closed before
the session: otherwise two members could write the same range.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from kzconsumer.consumer import ConsumerConnector, subscribe
from kzconsumer.errors import sole_cause
from kzconsumer.logs.logger import facts, get_logger
from kzconsumer.logs.setup import configure
from kzconsumer.registry.cluster_id import cluster_identity
from kzconsumer.registry.run_record import GroupRun
from kzconsumer.runs.runs import is_over
from kzconsumer.service.progress import log_progress, show_run
from kzconsumer.service.reload import Change, compare, obey_reloads
from kzconsumer.service.sd_notify import Manager
from kzconsumer.service.signals import Stop
from kzconsumer.service.systemd import ServiceReport
from kzconsumer.sessions import Sessions
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.configured import configured_sink
from kzconsumer.sinks.destination import destination_of
from kzconsumer.sinks.interface import SinkContext
from kzconsumer.sinks.planning import RangePlans
from kzconsumer.sinks.quarantine import RangeQuarantine
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.status.health import Health
from kzconsumer.status.observer import Observer
from kzconsumer.zookeeper.lease import Lease

log = get_logger("kzconsumer")

# Seconds that a sink may take to start, as announced to the service manager, unless its `start_limit` is longer.
SINK_START = 900.0
# EX_TEMPFAIL of sysexits.h: the run continues when a member is started again.
EXIT_UNFINISHED = 75


class Daemon:
    """One run, from start to a signal, a failure or the end of the bounded run."""

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        manager: Manager,
        show: Callable[[int, int], None] | None = None,
    ) -> None:
        """`load` reads the settings again; `show` is called with the progress of a bounded run."""
        self.settings = settings
        """Those in effect; a reload changes some."""
        self._load = load
        self._show = show
        self._lease = Lease()
        # Connecting tries each server for a part of the session timeout.
        patience = max((manager.watchdog or 0.0) / 2, settings.zookeeper.session_timeout)
        self._health = Health(self._lease, patience, settings.service.stalled_after)
        self._report = ServiceReport(manager, self._health)
        self._observer = Observer(lambda: self.settings, self._health, self._lease)
        self._stop = Stop(lambda: self.settings, self._report, self._leave_within)
        self._reconfigured = anyio.Event()
        self._sessions: Sessions | None = None
        self._runner: SinkRunner | None = None
        self._nothing_to_do = False

    async def run(self) -> int | None:
        """The exit status; None if the daemon is to start again: for other topics, or for a run of its own.

        Raises KzConsumerError for a failure that ends the member.
        """
        facts()["group"] = self.settings.group.id
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop.obey_signals)
                tasks.start_soon(self._report.run)
                if signal.SIGHUP not in self._stop.signals:
                    tasks.start_soon(obey_reloads, self._stop.joined, self._reload, self._apply, self._report)
                async with self._serving():
                    with self._stop.work:
                        await self._consume()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = sole_cause(group)
            self._report.ended(str(error))
            raise error from error.__cause__
        finally:
            self._stop.ended()
        log.info("stopped")
        status = self._status()
        if status is not None:
            self._report.ended(None)
        return status

    def _status(self) -> int | None:
        sessions, wanted = self._sessions, self.settings.subscription
        if sessions is not None and sessions.left_uncommitted:
            return 1
        if wanted.stop_at is None:
            return None if self._stop.starts_again else 0
        if self._nothing_to_do:
            return 0
        run = sessions.group_run if sessions is not None else None
        if sessions is not None and sessions.finished.is_set() and self._is_ours(run):
            return 0
        if self._stop.starts_again:
            return None
        log.error("stopped before the end of the run, start again to continue", run=run.id if run else wanted.run)
        return EXIT_UNFINISHED

    def _is_ours(self, run: GroupRun | None) -> bool:
        wanted = self.settings.subscription
        if run is None:
            return False
        return run.id == wanted.run if wanted.run is not None else run.stop_at == wanted.stop_at

    async def _consume(self) -> None:
        settings = self.settings
        chosen = settings.require_daemon()
        self._report.starting("waiting for ZooKeeper and a broker")
        context = SinkContext(
            group=settings.group.id,
            member=settings.group.id,
            cluster=await cluster_identity(settings),
            safe_until=lambda: self._lease.safe_until,
        )
        sink = configured_sink(settings, context)
        can = capabilities(sink)
        destination = destination_of(chosen.plugin, can)
        sessions = Sessions(settings, lease=self._lease, wants=can.wants, destination=destination)
        sessions.published = settings.status.published
        in_run = settings.subscription.stop_at is not None
        if in_run and await is_over(settings, self._is_ours, replayable=destination is not None):
            log.info("run is finished already, the sink is not started")
            self._nothing_to_do = True
            return
        plans = None
        if destination is not None:
            refuses_loss = settings.offsets.reset == "fail"
            plans = RangePlans(sessions, destination, settings.fetch.isolation, refuses_loss=refuses_loss)
        aside = RangeQuarantine(Path(chosen.quarantine), chosen.plugin) if chosen.quarantine is not None else None
        quarantine = aside if chosen.on_batch_failure == "quarantine" else None
        runner = SinkRunner(chosen.plugin, sink, settings.batch, sessions, plans, quarantine, sessions.rejects)
        self._sessions, self._runner = sessions, runner
        async with anyio.create_task_group() as tasks:
            self._report.starting(f"starting the sink {chosen.plugin}", max(SINK_START, can.start_limit))
            await tasks.start(runner.run)
            self._report.starting("joining the group")
            async with sessions.running():
                await subscribe(sessions)
                runner.feed([cursor.queue for cursor in sessions.cursors.values()])
                self._stop.joined.set()
                self._report.ready(sessions)
                self._observer.begin(sessions, runner)
                tasks.start_soon(self._observer.run)
                tasks.start_soon(log_progress, sessions, runner, self._observer.total, lambda: self._reconfigured)
                if self._show is not None:
                    tasks.start_soon(show_run, sessions, self._show)
                tasks.start_soon(self._stop_when_finished, sessions)
                await self._stop.begun.wait()
                sessions.stop_fetching()
                tasks.start_soon(self._end_with_lease, runner)
                await runner.stop(self._stop.seconds_left - self._stop.reserve)
                sessions.leave_within(self._stop.seconds_left)
            tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """The status server, imported only if the settings ask for it."""
        if self.settings.status.listen is None:
            yield
            return
        from kzconsumer.status.server import serving

        async with serving(self._observer):
            yield

    async def _end_with_lease(self, runner: SinkRunner) -> None:
        """While stopping: close the sink when the lease ends, since later writes cannot be committed."""
        while True:
            with anyio.move_on_after(self.settings.zookeeper.session_timeout / 3) as waiting:
                await self._lease.wait()
            if waiting.cancelled_caught:
                break
            await self._lease.wait_lost()
        await runner.stop(0)

    async def _stop_when_finished(self, sessions: Sessions) -> None:
        await sessions.finished.wait()
        in_run = self.settings.subscription.stop_at is not None
        self._stop.begin(start_again=in_run and not self._is_ours(sessions.group_run))

    def _leave_within(self, seconds: float) -> None:
        if self._sessions is not None:
            self._sessions.leave_within(seconds)

    def _reload(self) -> Change:
        """The changes of the settings; blocks."""
        return compare(self.settings, self._load())

    def _apply(self, change: Change) -> None:
        """Apply the changes that `reload.LIVE` lists. Only called once the member has joined."""
        assert self._runner is not None and self._sessions is not None  # noqa: PT018  (it has joined)
        before, self.settings = self.settings.subscription.paused_partitions, change.settings
        paused = self.settings.subscription.paused_partitions
        consumer = ConsumerConnector(self._sessions)
        consumer.resume(before - paused)
        consumer.pause(paused - before)
        configure(self.settings.log.level, self.settings.log.format)
        self._runner.limit(self.settings.batch)
        self._sessions.reconfigure(self.settings)
        self._health.stalled_after = self.settings.service.stalled_after
        self._reconfigured.set()
        self._reconfigured = anyio.Event()
        if change.rejoins:
            self._stop.begin(start_again=True)
