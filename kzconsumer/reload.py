"""What a changed configuration means for a running daemon: what changes at once, or by joining again, or by a restart.

Pure but for `obey_reloads`, which the daemon runs: SIGHUP, read, check, compare, apply. A configuration with a fault
changes nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import anyio
import msgspec
import structlog
from anyio import to_thread

from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.service import Service
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import keys_of

log = structlog.get_logger("kzconsumer")

#: What changes without a rebalance, and without the sink starting anew.
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

#: For these the member leaves in order and joins again, with its sink started anew, in the same process. A run of the
#: group has the topics that it began with. Everything else needs a restart.
REJOINING = frozenset(("subscription", key) for key in ("topics", "whitelist", "blacklist", "streams"))


class Change(msgspec.Struct, frozen=True):
    """From the settings in effect to those read anew."""

    settings: Settings
    """What is in effect from now on: the old ones, with the new values of what is applied."""
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
    apply: Callable[[Settings], None],
    rejoin: Callable[[], None],
    service: Service,
) -> None:
    """For ever; a signal that comes before the member has `joined` waits.

    `look` reads and checks everything anew, and raises ConfigError or PluginError; it may block.
    """
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            await joined.wait()
            service.reloading()
            try:
                change = await to_thread.run_sync(look)
            except (ConfigError, PluginError) as error:
                faults = error.faults if isinstance(error, ConfigError) else (str(error),)
                log.error("the new configuration is refused, the old one stays in effect", faults=faults)
                service.reloaded(f"configuration refused: {faults[0]}")
                continue
            apply(change.settings)
            log.info("configuration reloaded", applied=change.applied)
            if change.needs_restart:
                log.warning("a restart is needed for what else has changed", keys=change.needs_restart)
            if change.rejoins:
                rejoin()  # ready again when it has joined
                continue
            service.reloaded(f"restart needed for {', '.join(change.needs_restart)}" if change.needs_restart else "")
