"""The group machines (tests/support/simulated), with the schedules that hypothesis always begins with.

`python -m tests.simulate` runs them with random ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.support.extent import extent
from tests.support.simulated.broker_machine import GroupAndBrokersMachine
from tests.support.simulated.machine import GroupMachine

STEPS = settings(
    max_examples=extent(25, 1000, quick=10),
    stateful_step_count=20,
    phases=[phase for phase in Phase if phase is not Phase.explain],
)


class OnlyGroup(GroupMachine):
    """A class of its own, for the settings belong to it."""


OnlyGroup.TestCase.settings = STEPS
GroupAndBrokersMachine.TestCase.settings = STEPS

TestGroupMachine: Any = pytest.mark.timeout(7200)(OnlyGroup.TestCase)
TestGroupAndBrokersMachine: Any = pytest.mark.timeout(7200)(GroupAndBrokersMachine.TestCase)
