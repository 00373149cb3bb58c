"""Daemons that begin in the middle of a planned write (tests/support/simulated/replay_machine)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.support.extent import extent
from tests.support.simulated.replay_machine import ReplayMachine

ReplayMachine.TestCase.settings = settings(
    max_examples=extent(6, 1000, quick=3),
    stateful_step_count=4,
    phases=[Phase.generate],  # a search for the smallest schedule takes minutes: see tests/simulate
)

TestReplayMachine: Any = pytest.mark.timeout(7200)(ReplayMachine.TestCase)
