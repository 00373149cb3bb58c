"""Daemons that begin in the middle of a planned write (tests/support/simulated/replay_machine)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.support.extent import extent
from tests.support.simulated.daemon_machine import SLOW
from tests.support.simulated.replay_machine import ReplayMachine
from tests.support.simulated.scene import SESSION_TIMEOUT, Scene

ReplayMachine.TestCase.settings = settings(
    max_examples=extent(4, 1000, quick=2),
    stateful_step_count=4,
    phases=[Phase.generate],  # a search for the smallest schedule takes minutes: see tests/simulate
)

TestReplayMachine: Any = pytest.mark.timeout(7200)(ReplayMachine.TestCase)

SIMPLE: dict[str, Any] = {
    "seed": 0,
    "partitions": 3,
    "scene": Scene(brokers=2),
    "moment": "planned",
    "fault": "kill",
    "event": "nothing",
    "copy": "none",
    "same_id": False,
    "pace": 0.0,
    "next_fault": "none",
    "wait": 0.0,
}


def play(**chosen: Any) -> None:
    """A schedule without other faults."""
    machine = ReplayMachine()
    machine.begin(**SIMPLE | chosen)
    machine.nothing_wrong()
    machine.teardown()


def test_a_daemon_whose_commit_was_refused_stores_what_is_written_as_it_stops() -> None:
    play(moment="commit refused", same_id=True)


def test_a_daemon_that_is_cut_off_while_it_replays_begins_no_other_replay() -> None:
    """Its session expires meanwhile, and another daemon has the partitions."""
    play(pace=SLOW, next_fault="silence", wait=2 * SESSION_TIMEOUT)


def test_a_range_that_was_published_is_not_published_again() -> None:
    play(moment="written in part")
