"""Members consume again after each fault, within the time that docs/faults.md promises."""

from __future__ import annotations

import random
import sys

import pytest

from tests.support.extent import extent, seeds
from tests.support.simulated.product import product_in
from tests.support.simulated.recovery import DOUBTFUL, EXPIRED, FAULTS, LOST, NO_SERVER, OTHERS_LEAD, play
from tests.support.simulated.scene import SESSION_TIMEOUT
from tests.support.simulated.virtual_time import World

KEEPS_SESSION = LOST, NO_SERVER, DOUBTFUL
"""Faults that have these events, and no session ends: partitions stay where they are."""


@pytest.mark.parametrize("fault", FAULTS)
def test_members_consume_again(fault: str) -> None:
    for seed in seeds(1, 20):
        played = play(seed, FAULTS[fault], FAULTS[fault].lasts)
        assert played.wait <= FAULTS[fault].bound, f"seed {seed}"
        assert not FAULTS[fault].spares_others or played.others <= 1, f"seed {seed}"
        assert EXPIRED not in played.logged or FAULTS[fault].event not in KEEPS_SESSION, f"seed {seed}"
        assert not FAULTS[fault].event or FAULTS[fault].event in played.logged, f"seed {seed}: {sorted(played.logged)}"


def test_all_randomness_of_members_is_that_of_their_world() -> None:
    """So a schedule repeats exactly. A module of the product that draws lots itself has to be in the list there."""
    with product_in(World(0)):
        own = [name for name, module in list(sys.modules.items()) if getattr(module, "random", None) is random]
    assert [name for name in own if name.startswith("kzconsumer.")] == []


# An overloaded ZooKeeper may interrupt consumption, the others do.
STOP = [name for name, fault in FAULTS.items() if fault.lasts >= SESSION_TIMEOUT and name != "ZooKeeper overloaded"]


@pytest.mark.parametrize("fault", extent(STOP[:3], STOP))
def test_waits_are_measured(fault: str) -> None:
    """The control: counted from their beginning, faults that stop consumption are longer than each bound."""
    assert play(0, FAULTS[fault], 0.0).wait > SESSION_TIMEOUT / 2


def test_a_small_step_of_the_clock_is_not_noticed() -> None:
    assert DOUBTFUL not in play(0, FAULTS["wall clock set by half a second"], 0.0).logged


def test_a_broker_that_is_late_keeps_what_it_leads() -> None:
    assert OTHERS_LEAD not in play(0, FAULTS["broker silent, 10 s"], 0.0).logged
