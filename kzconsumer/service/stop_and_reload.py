"""Signals: SIGTERM and SIGINT stop the daemon by its deadline, after SIGHUP the configuration is read again."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.logs.logger import get_logger
from kzconsumer.service.systemd import ServiceReport
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.table_reader import keys_of
from kzconsumer.threads import in_thread

log = get_logger("kzconsumer")

# Signals within this time count as one: a wrapper and the terminal often send the same signal.
ONE_SIGNAL = 0.2
# Seconds for closing the ZooKeeper session after a second signal.
AT_ONCE = 0.2
# The process exits this many seconds after the deadline, whatever cannot be cancelled (a thread in a system call).
GRACE = 1.0


def hangup_reloads() -> bool:
    """Whether SIGHUP asks for a reload. At a terminal it says that the terminal is gone, as for every program."""
    return sys.stdin is None or not sys.stdin.isatty()


@contextmanager
def noted_reloads() -> Iterator[list[int]]:
    """Signals to reload that come before a daemon receives signals: their default action would end the process."""
    noted: list[int] = []
    if not hangup_reloads():
        yield noted
        return
    before = signal.signal(signal.SIGHUP, lambda number, frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGHUP, before)


class Signals:
    """What signals ask of the daemon that runs at the moment. Daemons follow each other (`run_daemons`): what is asked
    between two of them, or not done yet when one ends, is left to the next."""

    def __init__(self, early: Collection[int] = ()) -> None:
        """`early` are signals to reload that came before; one may be added until `receive` has begun."""
        self._early = early
        self.stop: Callable[[int], None] = lambda number: None
        """Called with each signal to stop."""
        self.reload = anyio.Event()
        """Set by a signal to reload, and replaced by who reloads."""

    async def receive(self) -> None:
        """Runs until cancelled."""
        reloads = hangup_reloads()
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            if self._early:
                self.reload.set()
            async for number in signals:
                if number == signal.SIGHUP and reloads:
                    self.reload.set()
                else:
                    self.stop(number)


class Stop:
    """Begins once, by a signal or by `begin`."""

    def __init__(
        self, settings: Callable[[], Settings], report: ServiceReport, leave_within: Callable[[float], None]
    ) -> None:
        """`leave_within` sets the deadline of the member, in seconds from now."""
        self._settings = settings
        self._report = report
        self._leave_within = leave_within
        self._signalled = -math.inf  # when the signal came that began it
        self.begun = anyio.Event()
        self.joined = anyio.Event()
        """Set by the daemon; a stop before that has nothing to finish."""
        self.work = anyio.CancelScope()
        """Of everything between the start and the end of the daemon."""
        self.starts_again = False
        """The daemon is to start again: with other topics, or with its own run."""
        self.began = math.inf
        """When the stop began (`kzconsumer.clock`)."""
        self._deadline = 0.0
        self._last_resort: threading.Timer | None = None

    @property
    def seconds_left(self) -> float:
        return self._deadline - now()

    @property
    def reserve(self) -> float:
        """Seconds reserved for closing the sink, the final commit and closing the session."""
        settings = self._settings()
        return min(1.0 + 1.0 + settings.zookeeper.session_timeout / 3, settings.stop.deadline / 3)

    def begin(self, *, start_again: bool = False) -> None:
        """Only the first call has an effect."""
        if self.begun.is_set():
            return
        self.starts_again = start_again
        seconds = self._settings().stop.deadline
        self.began = now()
        self._deadline = self.began + seconds
        if not start_again:
            self._report.stopping(self._deadline + GRACE)
        self.begun.set()
        self._last_resort = threading.Timer(seconds + GRACE, os._exit, [1])
        self._last_resort.daemon = True
        self._last_resort.start()
        if not self.joined.is_set():
            self.work.cancel()

    def signalled(self, number: int) -> None:
        """The first signal begins the stop; a second one ends it at once."""
        name = signal.Signals(number).name
        if now() - self._signalled < ONE_SIGNAL:
            return
        if self.begun.is_set() and not self.starts_again:
            log.warning("stopping at once", signal=name)
            self._leave_within(AT_ONCE)
            self.work.cancel()
            return
        self._signalled = now()
        log.info("stopping", signal=name, deadline=self._settings().stop.deadline)
        if self.begun.is_set():
            self.starts_again = False
            self._report.stopping(self._deadline + GRACE)
        else:
            self.begin()

    def ended(self) -> None:
        if self._last_resort is not None:
            self._last_resort.cancel()


# Changes of the configuration that need no restart, and those that do.

#: Applied at once.
LIVE = frozenset(
    {
        ("subscription", "paused"),
        ("log", "level"),
        ("log", "format"),
        ("log", "progress_interval"),
        ("offsets", "commit_interval"),
        ("fetch", "rate_limit"),
        ("batch", "max_records"),
        ("batch", "max_bytes"),
        ("batch", "max_time"),
        ("batch", "min_records"),
        ("batch", "min_bytes"),
        ("stop", "deadline"),
        ("service", "stalled_after"),
        ("status", "stalled_after"),
    }
)

#: Applied by leaving and joining again with a new sink, but not in a bounded run, which keeps its topics.
REJOINING = frozenset(("subscription", key) for key in ("topics", "include", "exclude", "streams"))


class SettingChange(msgspec.Struct, frozen=True):
    settings: Settings
    """Those in effect, with the values that are applied."""
    applied: tuple[str, ...]
    rejoins: bool
    """Part of it takes effect by leaving and joining again."""
    needs_restart: tuple[str, ...]


def compare(present: Settings, read: Settings) -> SettingChange:
    in_run = present.subscription.stop_at is not None or read.subscription.stop_at is not None
    change = _merged(present, read, LIVE if in_run else LIVE | REJOINING)
    try:
        if change.rejoins:
            change.settings.require_subscription()
    except ConfigError:  # what is read is valid with a change that needs a restart
        return _merged(present, read, LIVE)
    return change


def _merged(present: Settings, read: Settings, may: Collection[tuple[str, ...]]) -> SettingChange:
    """With those changes that are at places of `may`."""
    new = {place: value for place, value, _ in keys_of(read)}
    old = {place: value for place, value, _ in keys_of(present)}
    differ = [place for place in {**old, **new} if old.get(place) != new.get(place) and place != ("source",)]
    settings = present
    for table in {place[0] for place in differ if place in may}:
        # All keys together: a table with only some of them may be invalid.
        values = {place[1]: new[place] for place in differ if place in may and place[0] == table}
        changed = msgspec.structs.replace(getattr(settings, table), **values)
        settings = msgspec.structs.replace(settings, **{table: changed})
    return SettingChange(
        settings,
        tuple(".".join(place) for place in differ if place in may),
        any(place in may and place in REJOINING for place in differ),
        tuple(".".join(place) for place in differ if place not in may),
    )


async def obey_reloads(
    signals: Signals,
    joined: anyio.Event,
    look: Callable[[], SettingChange],
    apply: Callable[[SettingChange], None],
    report: ServiceReport,
) -> None:
    """Run until cancelled. `look` reads the settings; it raises ConfigError or PluginError, and may block."""
    await joined.wait()
    while True:
        await signals.reload.wait()
        asked, signals.reload = signals.reload, anyio.Event()  # before it is read: the file may change again meanwhile
        report.reloading()
        try:
            change = await in_thread(look)
        except (ConfigError, PluginError) as error:
            faults = error.faults if isinstance(error, ConfigError) else (str(error),)
            log.error("configuration refused", faults=faults)
            report.reloaded(f"configuration refused: {faults[0]}")
            continue
        except BaseException:
            signals.reload = asked  # cancelled, since the daemon ends: the next one reloads
            raise
        apply(change)
        log.info("configuration reloaded", applied=change.applied)
        if change.needs_restart:
            log.warning("changes need a restart", keys=change.needs_restart)
        if change.rejoins:
            continue  # ready again when it has joined
        report.reloaded(f"restart needed for {', '.join(change.needs_restart)}" if change.needs_restart else "")
