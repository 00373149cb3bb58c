"""Reads the configuration again on SIGHUP, and applies the changes that need no restart."""

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


class Change(msgspec.Struct, frozen=True):
    settings: Settings
    """Those in effect, with the values that are applied."""
    applied: tuple[str, ...]
    rejoins: bool
    """Part of it takes effect by leaving and joining again."""
    needs_restart: tuple[str, ...]


def compare(present: Settings, read: Settings) -> Change:
    new = {place: value for place, value, _ in keys_of(read)}
    old = {place: value for place, value, _ in keys_of(present)}
    differ = [place for place in {**old, **new} if old.get(place) != new.get(place) and place != ("source",)]
    in_run = present.subscription.stop_at is not None or read.subscription.stop_at is not None
    may = LIVE if in_run else LIVE | REJOINING
    settings = present
    for table in {place[0] for place in differ if place in may}:
        # All keys together: a table with only some of them may be invalid.
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
    """Run until cancelled. `look` reads the settings; it raises ConfigError or PluginError, and may block."""
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            await joined.wait()
            report.reloading()
            try:
                change = await to_thread.run_sync(look)
            except (ConfigError, PluginError) as error:
                faults = error.faults if isinstance(error, ConfigError) else (str(error),)
                log.error("configuration refused", faults=faults)
                report.reloaded(f"configuration refused: {faults[0]}")
                continue
            apply(change)
            log.info("configuration reloaded", applied=change.applied)
            if change.needs_restart:
                log.warning("changes need a restart", keys=change.needs_restart)
            if change.rejoins:
                continue  # ready again when it has joined
            report.reloaded(f"restart needed for {', '.join(change.needs_restart)}" if change.needs_restart else "")
