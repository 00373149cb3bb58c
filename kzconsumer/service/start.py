"""Runs the daemon of one instance: its lock file, its restarts, its exit status.

The lock only prevents an instance from being started twice by mistake; it is not part of the fencing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import anyio

from kzconsumer.errors import AlreadyRunningError, ConfigError, KzConsumerError, NotPermittedError, PluginError
from kzconsumer.logs.logger import get_logger
from kzconsumer.logs.setup import finish
from kzconsumer.process_lock import ProcessLock, content
from kzconsumer.service.daemon import Daemon
from kzconsumer.service.sd_notify import Manager
from kzconsumer.settings.settings import Settings

log = get_logger("kzconsumer")

INSTALLED = Path("/etc/kzconsumer")
RUNNING = Path("/run/kzconsumer")


def run(settings: Settings, load: Callable[[], Settings], show: Callable[[int, int], None] | None = None) -> int:
    """Consume until a signal, or to the end of a run. Returns the exit status: 0 after an orderly stop, 1 after a
    failure, which is logged (a final commit that failed is one), 75 when a run is not at its end.

    `load` reads the settings again after a SIGHUP; it raises ConfigError or PluginError, and may block. `show` is
    called at intervals with how much this member has read of its part of a run, and how much that is.
    The event loop is uvloop's where that is installed. The settings have been checked (`cli/checks`). Raises
    ConfigError and PluginError for faults in them that only a server or the start of the sink shows,
    AlreadyRunningError.
    """
    manager = Manager.from_environment(os.environ, os.getpid())
    try:
        with instance_lock(lock_path(settings.service.lock, settings.source, os.environ)):
            loop = {"use_uvloop": find_spec("uvloop") is not None}
            return anyio.run(_run_daemons, settings, load, manager, show, backend_options=loop)
    except (AlreadyRunningError, ConfigError, PluginError):
        raise
    except NotPermittedError as error:
        raise ConfigError([f"{settings.source}: [zookeeper]: {error}"]) from None
    except KzConsumerError as error:
        log.error("stopped by a failure", error=type(error).__name__, reason=str(error))
        for note in getattr(error, "__notes__", ()):
            log.error("another failure", reason=note)
        if error.__cause__ is not None:
            log.debug("caused by", exc_info=error.__cause__)
        return 1
    finally:
        finish()


async def _run_daemons(
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
