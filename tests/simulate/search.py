"""One seed's search: some schedules of one of the group machines. The same seed always gives the same schedules."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.simulated.broker_machine import (
    GroupAndBrokersMachine,
    LogsCutOffMachine,
    ZooKeeperRestoredMachine,
)
from tests.support.simulated.daemon_machine import DaemonMachine
from tests.support.simulated.machine import GroupMachine
from tests.support.simulated.replay_machine import ReplayMachine

MACHINES: tuple[type[GroupMachine | DaemonMachine], ...] = (
    GroupMachine,
    GroupAndBrokersMachine,
    LogsCutOffMachine,
    ZooKeeperRestoredMachine,
    DaemonMachine,
    ReplayMachine,
)
SCHEDULES = 30
"""Of one seed: some seconds, so that a failure is soon repeated. The first ones do little."""
SEEDS = 1 << 32


def search(number: int, *, shrink: bool = False) -> None:
    """Raises what a schedule has found; with `shrink`, of the smallest schedule that finds it, after some minutes."""
    machine = MACHINES[number % len(MACHINES)]
    found = settings(
        max_examples=SCHEDULES,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        stateful_step_count=20,
        suppress_health_check=list(HealthCheck),
    )
    # A class of its own: the seed stays with it.
    run_state_machine_as_test(seed(number)(type(machine.__name__, (machine,), {})), settings=found)


def random_seed() -> int:
    return random.SystemRandom().randrange(SEEDS)
