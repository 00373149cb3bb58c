"""How often a healthy daemon feeds the watchdog, on the virtual clock."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from itertools import pairwise

import pytest

from kzconsumer.clock import now
from kzconsumer.service.systemd import Field, Manager, ServiceReport
from kzconsumer.status.health import Health
from kzconsumer.zookeeper.session import Lease
from tests.support.simulated.virtual_time import World, clock_of


class Listening(Manager):
    """Records when the watchdog is fed."""

    def __init__(self, watchdog: float) -> None:
        super().__init__("@watchdog", watchdog)
        self.fed: list[float] = []
        self.sent: list[dict[str, Field]] = []

    def send(self, **fields: Field) -> None:
        self.sent.append(fields)
        if "WATCHDOG" in fields:
            self.fed.append(now())


@pytest.mark.parametrize("watchdog", [0.5, 4.0, 60.0])
def test_the_watchdog_is_fed_at_least_twice_per_interval(watchdog: float) -> None:
    """As sd_watchdog_enabled(3) recommends, so that one report may be late."""
    world = World(0)
    with clock_of(world):
        manager = Listening(watchdog)
        process = world.process("daemon")
        faulthandler.disable()
        report = process.create_task(ServiceReport(manager, Health(Lease(), 6.0, 60.0)).run())
        assert faulthandler.is_enabled(), "its signal shows where each thread was"
        world.pass_time(5 * watchdog)
        report.cancel()
        world.pass_time(1.0)
        world.end(process)
    assert len(manager.fed) >= 10
    assert max(after - before for before, after in pairwise(manager.fed)) <= watchdog / 2


def test_each_report_has_the_status_of_its_moment() -> None:
    """Whatever else it says: the first line of `systemctl status` is that of the last report."""
    world = World(0)
    with clock_of(world):
        manager, health = Listening(4.0), Health(Lease(), 6.0, 60.0)
        report = ServiceReport(manager, health)
        process = world.process("daemon")
        task = process.create_task(report.run())
        reports: list[tuple[str, Callable[[], None]]] = [
            ("looking for brokers", lambda: report.starting("looking for brokers")),
            ("joining", lambda: report.starting("joining", 5.0)),
            ("joining", report.reloading),
            ("joining; refused: x", lambda: report.reloaded("refused: x")),
            ("stopping; refused: x", lambda: report.stopping(world.now + 9.0)),
        ]
        for phase, tell in reports:
            manager.sent.clear()
            tell()
            world.pass_time(3.0)
            assert len(manager.sent) > 1, "it is repeated"
            assert {each["STATUS"] for each in manager.sent} == {phase}
        task.cancel()
        world.pass_time(1.0)
        world.end(process)
    report.ended("no brokers")
    assert manager.sent[-1] == {"STOPPING": 1, "STATUS": "failed: no brokers"}
