"""Applies a changed configuration to a running daemon, on SIGHUP: at once, by joining again, or only by a restart.

A configuration with a fault changes nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import anyio
import msgspec
from anyio import to_thread

from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.logs.logger import get_logger
from kzconsumer.service.systemd import ServiceReport
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import keys_of

log = get_logger("kzconsumer")

#: What changes without a rebalance, and without a new start of the sink.
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

#: For these the member leaves in order and joins again in the same process, and its sink is started again. A run of the
#: group keeps the topics that it began with. Everything else needs a restart.
REJOINING = frozenset(("subscription", key) for key in ("topics", "whitelist", "blacklist", "streams"))


class Change(msgspec.Struct, frozen=True):
    """From the settings in effect to those just read."""

    settings: Settings
    """The old settings, with the new values of what is applied."""
    applied: tuple[str, ...]
    rejoins: bool
    """Something of it takes effect when the member has left and joined again."""
    needs_restart: tuple[str, ...]


def compare(present: Settings, read: Settings) -> Change:
    """Only values count, not how they are written or where."""
    new = {place: value for place, value, _ in keys_of(read)}
    old = {place: value for place, value, _ in keys_of(present)}
    differ = [place for place in {**old, **new} if old.get(place) != new.get(place) and place != ("source",)]
    in_run = present.subscription.stop_at is not None or read.subscription.stop_at is not None
    may = LIVE if in_run else LIVE | REJOINING
    settings = present
    for table in {place[0] for place in differ if place in may}:
        # At once: between two of them a table may hold what it refuses.
        values = {place[1]: new[place] for place in differ if place in may and place[0] == table}
        changed = msgspec.structs.replace(getattr(settings, table), **values)
        settings = msgspec.structs.replace(settings, **{table: changed})
    return Change(
        settings,
        tuple(".".join(place) for place in differ if place in may),
        any(place in may & REJOINING for place in differ),
        tuple(".".join(place) for place in differ if place not in may),
    )


async def obey_reloads(
    joined: anyio.Event,
    look: Callable[[], Change],
    apply: Callable[[Change], None],
    report: ServiceReport,
) -> None:
    """Runs until cancelled; a signal that comes before the member has `joined` waits.

    `look` reads and checks the settings, and raises ConfigError or PluginError; it may block.
    """
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            await joined.wait()
            report.reloading()
            try:
                change = await to_thread.run_sync(look)
            except (ConfigError, PluginError) as error:
                faults = error.faults if isinstance(error, ConfigError) else (str(error),)
                log.error("configuration refused, the old one stays in effect", faults=faults)
                report.reloaded(f"configuration refused: {faults[0]}")
                continue
            apply(change)
            log.info("configuration reloaded", applied=change.applied)
            if change.needs_restart:
                log.warning("restart needed for other changes", keys=change.needs_restart)
            if change.rejoins:
                continue  # ready again when it has joined
            report.reloaded(f"restart needed for {', '.join(change.needs_restart)}" if change.needs_restart else "")
