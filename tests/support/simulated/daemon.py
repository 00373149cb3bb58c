"""One simulated daemon: `kzconsumer run` in a process of its own, its service manager, its observer and its sink."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import ReferenceType, WeakKeyDictionary, ref

import anyio

from kzconsumer.errors import ConfigError
from kzconsumer.service.daemon import run_daemons
from kzconsumer.service.systemd import Field, Manager
from kzconsumer.sessions import Sessions
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import Batch
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.status.health import Health
from kzconsumer.status.observer import Observer
from kzconsumer.zookeeper.session import Lease
from tests.support.simulated.virtual_time import Process, World

if TYPE_CHECKING:
    from tests.support.simulated.daemon_sink import Interruption
    from tests.support.simulated.daemons import Daemons

WATCHDOG = 20.0
WRITES = "tests.support.simulated.daemon:write"


class ServiceManager(Manager):
    """Records each notification, and when it came."""

    def __init__(self, world: World) -> None:
        super().__init__(None, None)
        self.watchdog = WATCHDOG
        self._world = world
        self.received: list[tuple[float, dict[str, Field]]] = []

    @property
    def listens(self) -> bool:
        return True

    def send(self, **fields: Field) -> None:
        self.received.append((self._world.now, fields))

    def when(self, field: str) -> list[float]:
        return [at for at, fields in self.received if field in fields]

    @property
    def waits(self) -> bool:
        """Whether a reload has been announced, and its end has not."""
        last = (field for _, fields in reversed(self.received) for field in ("READY", "RELOADING") if field in fields)
        return next(last, "") == "RELOADING"


class SimulatedDaemon:
    """One `kzconsumer run`."""

    def __init__(
        self, daemons: Daemons, process: Process, settings: Settings, pace: float, early: Sequence[int] = ()
    ) -> None:
        self.daemons = daemons
        self.process = process
        self.settings = settings
        """Those in its file."""
        self.limits: list[BatchSettings] = [settings.batch]
        """All that were in its file."""
        self.pace = pace
        self.refuses = self.refused = False
        """Its destination does not take the next batch; did not take one."""
        self.interruption: Interruption | None = None
        """Of its next write."""
        self.manager = ServiceManager(process.world)
        self.progress = (0, 0)
        """Of its part of a run, as last shown."""
        self.stopped: list[float] = []
        """When it got a signal to stop."""
        self.killed = self.reported = False
        self.signalled = False
        """It has received a signal."""
        self.ended_claims: list[float] = []
        """When its owner nodes went."""
        self.logs: tuple[str, str] = settings.log.level, settings.log.format
        """How its log was configured last."""
        self.valid = True
        self.freezes = self.silences = 0
        self.thawed = 0.0
        """When it last went on."""
        self.slow = False
        """Its lines are."""
        self.troubled = 0.0
        """The end of the time in which a fault may explain its behaviour."""
        self.late_until = 0.0
        """The end of the faults because of which it may learn only later what others change."""
        self.misled_until = 0.0
        """Until then it may not know that somebody has deleted its nodes."""
        self.observer: SeenObserver | None = None
        """Of its present start, from when it has joined."""
        _OF_PROCESS[process] = ref(self)
        self.ended = 0.0
        """When, if it has ended; what finds out may look later."""
        self.task = process.create_task(run_daemons(settings, self._load, self.manager, self._show, early))
        self.task.add_done_callback(lambda _: setattr(self, "ended", process.world.now))
        daemons.group.ends_its_connections(process, self.task, daemons.violated)

    def __repr__(self) -> str:
        return f"<SimulatedDaemon {self.process.name}>"

    def _load(self) -> Settings:
        if not self.valid:
            raise ConfigError(["not valid"])
        return self.settings

    def _show(self, done: int, total: int) -> None:
        if not 0 <= done <= total:
            self.daemons.violated(f"{self} shows {done} of {total}")
        self.progress = (done, total)

    @property
    def runs(self) -> bool:
        return not self.killed and not self.task.done()

    @property
    def in_trouble(self) -> bool:
        return self.slow or self.killed or self.process.world.now < self.troubled

    @property
    def topics(self) -> set[str]:
        """Those of the group's that it subscribes to."""
        listed = self.settings.subscription.topics
        return set(listed) if listed else {each.topic for each in self.daemons.group.logs.partitions}

    def unfreeze(self) -> None:
        if self.process.frozen:
            self.thawed = self.process.world.now
            self.process.frozen = False

    async def write(self, batch: Batch) -> None:
        """It takes `pace` seconds, and the records are there at its end."""
        claims = self.daemons.claims.begins(self, batch)
        if self.pace:
            await anyio.sleep(self.pace)
        if self.refuses:
            self.refuses, self.refused = False, True
            raise OSError("no space left")
        self.daemons.wrote(self, batch)
        self.daemons.claims.wrote(self, batch, claims)


class SeenObserver(Observer):
    """A daemon's own, which the daemon is asked by."""

    sessions: Sessions
    runner: SinkRunner

    def __init__(self, settings: Callable[[], Settings], health: Health, lease: Lease) -> None:
        super().__init__(settings, health, lease)
        self.health = health
        daemon_here().observer = None

    def begin(self, sessions: Sessions, runner: SinkRunner) -> None:
        super().begin(sessions, runner)
        self.sessions, self.runner = sessions, runner
        daemon_here().observer = self

    async def run(self) -> None:
        """As with a status server, which is asked about the whole group."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.group.run)
            await super().run()


class LastResort:
    """The timer that ends a stop, on the clock of the world: a daemon whose process runs never needs it."""

    daemon = False

    def __init__(self, seconds: float, function: Callable[..., object], arguments: Sequence[object]) -> None:
        self._of, self._seconds, self._cancelled = daemon_here(), seconds, False
        if (function, list(arguments)) != (os._exit, [1]):
            self._of.daemons.violated(f"the last resort of a stop is {function}{arguments}")

    def start(self) -> None:
        self._of.process.world.after(self._seconds, self._end)

    def cancel(self) -> None:
        self._cancelled = True

    def _end(self) -> None:
        goes_on = self._of.process.frozen or self._of.process.world.now < self._of.thawed + 1.0
        if not self._cancelled and not goes_on:
            self._of.daemons.violated(f"{self._of} was ended by its last resort")


_OF_PROCESS: WeakKeyDictionary[Process, ReferenceType[SimulatedDaemon]] = WeakKeyDictionary()


def daemon_here() -> SimulatedDaemon:
    here = asyncio.get_running_loop()
    assert isinstance(here, Process)
    found = _OF_PROCESS[here]()
    assert found is not None
    return found


async def write(batch: Batch) -> None:
    """The function of the sink of each daemon."""
    await daemon_here().write(batch)
