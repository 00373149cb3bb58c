"""The daemon: one member and one sink, from start to an orderly stop; and runs of it, under the lock of an instance.

The sink starts before the member joins, since a member that cannot write must not own partitions. It is closed before
the session: otherwise two members could write the same range.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer.consumer import ConsumerConnector, subscribe
from kzconsumer.errors import (
    AlreadyRunningError,
    ConfigError,
    KzConsumerError,
    NotPermittedError,
    PluginError,
    sole_cause,
)
from kzconsumer.group.membership import new_consumer_id
from kzconsumer.lag.totals import Total
from kzconsumer.logs.logger import facts, get_logger
from kzconsumer.logs.setup import configure, finish
from kzconsumer.model import TopicPartition
from kzconsumer.own_files import ProcessLock, content
from kzconsumer.registry.cluster import cluster_identity
from kzconsumer.registry.group_records import GroupRun
from kzconsumer.runs import is_over
from kzconsumer.service.stop_and_reload import SettingChange, Signals, Stop, compare, obey_reloads
from kzconsumer.service.systemd import Manager, ServiceReport
from kzconsumer.sessions import Sessions
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.capabilities import capabilities, configured_sink, misspelt
from kzconsumer.sinks.interface import SinkContext
from kzconsumer.sinks.quarantine import RangeQuarantine
from kzconsumer.sinks.range_plans import RangePlans, destination_of
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.status.health import Health
from kzconsumer.status.observer import Observer
from kzconsumer.zookeeper.session import Lease

log = get_logger("kzconsumer")

# Seconds until the first line.
FIRST = 5.0
# Seconds between two calls of `show`.
SHOW = 0.5


async def log_progress(
    sessions: Sessions, runner: SinkRunner, total: Callable[[], Total], reconfigured: Callable[[], anyio.Event]
) -> None:
    """A line per `[log] progress_interval`: owned partitions, lag, rate; at debug the positions of each partition.

    `reconfigured` gives the event of the next change of settings: a line is logged at once then.
    """
    before: dict[tuple[str, int], int] = {}
    pause = min(sessions.settings.log.progress_interval, FIRST)
    logged = now()
    while True:
        with anyio.move_on_after(pause):
            await reconfigured().wait()
        passed, logged = now() - logged, now()
        positions = sessions.positions()
        done = {(at.topic, at.partition): at.processed for at in positions}
        advanced = sum(until - before[key] for key, until in done.items() if key in before)
        lag = total()
        log.info(
            "progress",
            owned=len(positions),
            behind=lag.lag,
            **({"at_least": lag.at_least, "unknown": lag.unknown} if lag.unknown else {}),
            per_second=round(advanced / passed) if before and passed > 0 else None,
            lease=sessions.lease.held,
            batch=runner.status.log_fields() if runner.status else None,
        )
        log.debug("positions", partitions=[msgspec.structs.asdict(at) for at in positions])
        before = done
        pause = sessions.settings.log.progress_interval


async def show_run(sessions: Sessions, show: Callable[[int, int], None]) -> None:
    """Call `show` with offsets processed and to process, of the partitions owned at present."""
    begun: dict[TopicPartition, int] = {}
    while True:
        await anyio.sleep(SHOW)
        if (run := sessions.group_run) is None:
            continue
        done = total = 0
        for at in sessions.positions():
            end = run.end(at.topic_partition, at.incarnation)
            if end is not None:
                # A log that was cut off may have moved the position back, or the end to before it.
                before = begun.get(at.topic_partition, end)
                first = begun[at.topic_partition] = min(before, at.processed, end)
                done += min(at.processed, end) - first
                total += end - first
        show(done, total)


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
        signals: Signals,
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
        self._signals = signals
        signals.stop = self._stop.signalled
        self._reconfigured = anyio.Event()
        self._sessions: Sessions | None = None
        self._runner: SinkRunner | None = None
        self._nothing_to_do = False

    async def run(self) -> int | None:
        """The exit status; None if the daemon is to start again: for other topics, or for a run of its own.

        Raises KzConsumerError for a failure that ends the member.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._report.run)
                tasks.start_soon(
                    obey_reloads, self._signals, self._stop.joined, self._reload, self._apply, self._report
                )
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
        # A final commit that failed does not end a daemon that starts again: its records are redelivered to members.
        again = self._stop.starts_again
        if sessions is not None and sessions.left_uncommitted and not again:
            return 1
        if wanted.stop_at is None:
            return None if again else 0
        if self._nothing_to_do:
            return 0
        run = sessions.group_run if sessions is not None else None
        if sessions is not None and sessions.finished.is_set() and self._is_ours(run):
            return 0
        if again:
            return None
        log.error("stopped before the end of the run, start again to continue", run=run.id if run else wanted.run)
        return EXIT_UNFINISHED

    def _is_ours(self, run: GroupRun | None) -> bool:
        wanted = self.settings.subscription
        if run is None:
            return False
        return run.id == wanted.run if wanted.run is not None else run.stop_at == wanted.stop_at

    async def _consume(self) -> None:
        self._report.starting("waiting for ZooKeeper and a broker")
        built = await self._build()
        if built is None:
            log.info("run is finished already, the sink is not started")
            self._nothing_to_do = True
            return
        self._sessions, self._runner = sessions, runner = built
        # The sink is entered before the member joins. It may need ten seconds (Spark), and a member that joins takes
        # partitions from others that read them: they would stay unread for that time. Nothing is claimed, and nothing
        # planned, for a sink that has not started.
        async with anyio.create_task_group() as tasks:
            self._report.starting(f"starting the sink {runner.name}", max(SINK_START, runner.start_limit))
            log.info("sink starting", sink=runner.name)
            began = now()
            await tasks.start(runner.run)
            log.info("sink ready", sink=runner.name, seconds=round(now() - began, 3))
            self._report.joining(sessions)
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
                # The stop, in this order:
                # 1. Nothing more is fetched; what is collected and was not begun is left to the next owner.
                # 2. The batch that is being written may end until the deadline less a reserve, then the sink is closed,
                #    and its worker with it: earlier if the lease ends (`_end_with_lease`), as nothing that is written
                #    afterwards can be committed.
                # 3. Only then the member leaves: streams end, the last offsets are committed, the session is closed. A
                #    session that ended while our worker still writes would give the partitions to another writer.
                # Of the time of the signal: partitions that were lost in between are those of a stop.
                sessions.stop_fetching(self._stop.began)
                tasks.start_soon(self._end_with_lease, runner)
                await runner.stop(self._stop.seconds_left - self._stop.reserve)
                sessions.leave_within(self._stop.seconds_left)
            tasks.cancel_scope.cancel()

    async def _build(self) -> tuple[Sessions, SinkRunner] | None:
        """The member and the runner of its sink; None if the run is finished already."""
        settings = self.settings
        chosen = settings.require_daemon()
        consumer = new_consumer_id(settings.group.id, settings.group.consumer_id)
        context = SinkContext(
            group=settings.group.id,
            member=consumer,
            cluster=await cluster_identity(settings),
            safe_until=lambda: self._lease.safe_until,
            rate_limit=lambda: self.settings.fetch.rate_limit,
        )
        sink = configured_sink(settings, context)
        can = capabilities(sink)
        for attribute, meant in misspelt(sink).items():
            log.warning("sink attribute has no effect", attribute=attribute, meant=meant)
        destination = destination_of(chosen.plugin, can)
        sessions = Sessions(settings, consumer=consumer, lease=self._lease, wants=can.wants, destination=destination)
        sessions.published = settings.status.published
        in_run = settings.subscription.stop_at is not None
        if in_run and await is_over(settings, self._is_ours, replayable=destination is not None):
            return None
        plans = None
        if destination is not None:
            refuses_loss = settings.offsets.reset == "fail"
            plans = RangePlans(sessions, destination, settings.fetch.isolation, refuses_loss=refuses_loss)
        aside = RangeQuarantine(Path(chosen.quarantine), chosen.plugin) if chosen.quarantine is not None else None
        quarantine = aside if chosen.on_batch_failure == "quarantine" else None
        return sessions, SinkRunner(chosen.plugin, sink, settings.batch, sessions, plans, quarantine, sessions.rejects)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """The status server, imported only if the settings ask for it."""
        if self.settings.status.listen is None:
            yield
            return
        from kzconsumer.status.status_server import serving

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
        self._stop.begin(start_again=not self._is_ours(sessions.group_run))

    def _leave_within(self, seconds: float) -> None:
        if self._sessions is not None:
            self._sessions.leave_within(seconds)

    def _reload(self) -> SettingChange:
        """The changes of the settings; blocks."""
        return compare(self.settings, self._load())

    def _apply(self, change: SettingChange) -> None:
        """Apply the changes that `stop_and_reload.LIVE` lists. Only called once the member has joined."""
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


# The lock only prevents an instance from being started twice by mistake; it is not part of the fencing.

INSTALLED = Path("/etc/kzconsumer")
RUNNING = Path("/run/kzconsumer")


def run(
    settings: Settings,
    load: Callable[[], Settings],
    show: Callable[[int, int], None] | None = None,
    early: Collection[int] = (),
) -> int:
    """Consume until a signal, or to the end of a run. Returns the exit status: 0 after an orderly stop, 1 after a
    failure, which is logged (a final commit that failed is one), 75 when a run is not at its end.

    `load` reads the settings again after a SIGHUP; it raises ConfigError or PluginError, and may block. `show` is
    called at intervals with how much this member has read of its part of a run, and how much that is. `early` are the
    signals to reload that have come since the settings were read, and still come (`Signals`).
    The event loop is uvloop's where that is installed. The settings have been checked (`cli/checks`). Raises
    ConfigError and PluginError for faults in them that only a server or the start of the sink shows,
    AlreadyRunningError.
    """
    manager = Manager.from_environment(os.environ, os.getpid())
    try:
        with instance_lock(lock_path(settings.service.lock, settings.source, os.environ)):
            loop = {"use_uvloop": find_spec("uvloop") is not None}
            return anyio.run(run_daemons, settings, load, manager, show, early, backend_options=loop)
    except (AlreadyRunningError, ConfigError, PluginError):
        raise
    except NotPermittedError as error:
        raise ConfigError([f"{settings.source}: [zookeeper]: {error}"]) from None
    except KzConsumerError as error:
        log.error("stopped by a failure", group=settings.group.id, error=type(error).__name__, reason=str(error))
        for note in getattr(error, "__notes__", ()):
            log.error("another failure", group=settings.group.id, reason=note)
        if error.__cause__ is not None:
            log.debug("caused by", exc_info=error.__cause__)
        return 1
    finally:
        finish()


async def run_daemons(
    settings: Settings,
    load: Callable[[], Settings],
    manager: Manager,
    show: Callable[[int, int], None] | None,
    early: Collection[int] = (),
) -> int:
    """One daemon after the other, as `Daemon.run` says. Returns the exit status; raises as it does.

    Signals are received from the first daemon to the last, as the default action of one ends the process at once: from
    a `SIGHUP` systemd takes that for a clean exit, and does not start it again.
    """
    facts()["group"] = settings.group.id
    signals = Signals(early)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signals.receive)  # begins once there is a daemon to tell
            status = await _in_turn(settings, load, manager, signals, show)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = sole_cause(group)
        raise error from error.__cause__
    return status


async def _in_turn(
    settings: Settings,
    load: Callable[[], Settings],
    manager: Manager,
    signals: Signals,
    show: Callable[[int, int], None] | None,
) -> int:
    while True:
        daemon = Daemon(settings, load, manager, signals, show)
        if (status := await daemon.run()) is not None:
            return status
        settings = daemon.settings
        if settings.subscription.stop_at is None:
            log.info("rejoining with other topics")
        else:
            log.info("previous run finished, starting our own", run=settings.subscription.run)


def lock_path(setting: str | None, source: str, environment: Mapping[str, str]) -> Path | None:
    """The setting, or the lock of the systemd unit that runs this process, or that has this file.

    None without either: the same file may be run several times, as several members.
    """
    if setting is not None:
        return Path(setting)
    if directory := environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return Path(directory, "lock")
    file = Path(source)
    if file.absolute().parent == INSTALLED and (started := RUNNING / file.stem / "lock").exists():
        return started
    return None


@contextmanager
def instance_lock(path: Path | None) -> Iterator[None]:
    """Raises AlreadyRunningError if another process has the lock, ConfigError if the file cannot be opened."""
    if path is None:
        yield
        return
    try:
        lock = ProcessLock.take(path, mode=0o644)
        holder = content(path)[:32].decode("ascii", "replace").strip() if lock is None else ""
    except OSError as error:
        raise ConfigError([f"[service] lock: {path} cannot be opened: {error.strerror}"]) from None
    if lock is None:
        raise AlreadyRunningError(f"{path}: process {holder or os.getpid()} runs this instance already")
    try:
        os.fchmod(lock.descriptor, 0o644)  # regardless of the umask: the holder is shown to other users
        os.ftruncate(lock.descriptor, 0)
        os.pwrite(lock.descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        lock.release()
