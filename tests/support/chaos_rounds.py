"""Rounds of faults of a group while records flow, and the verdict after each."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

import anyio

from tests.support.chaos import SparkGroup
from tests.support.flow import Flow

Group = TypeVar("Group", bound=SparkGroup)
Faults = Sequence[Callable[[Group, str, Random], Awaitable[None]]]


async def play(group: Group, sent: Flow, rounds: int, seed: int, faults: Faults[Group]) -> None:
    """Start members a and b; each round has a seed of its own. Raises AssertionError if a record is not there once."""
    print(f"\n{rounds} rounds from seed {seed}")
    group.start("a")
    group.start("b")
    for number in range(rounds):
        began = time.monotonic()
        what = await _round(group, seed + number, faults)
        missing, twice = await group.verdict()
        print(
            f"round {number + 1} of {rounds}, seed {seed + number}: {what}, {time.monotonic() - began:.0f} s; "
            f"{sum(sent.sent.values())} records sent, {len(missing)} missing, {len(twice)} twice",
            flush=True,
        )
        assert (missing, twice) == ([], [])


async def _round(group: Group, seed: int, faults: Faults[Group]) -> str:
    """One fault; returns its name once both members are at work again."""
    chance = Random(seed)
    fault, name = faults[seed % len(faults)], chance.choice("ab")
    await group.whole(2)
    await group.past([at + 1 for at in await group.committed()])
    await anyio.sleep(chance.uniform(0.0, 1.5))
    await fault(group, name, chance)
    await group.past([at + 1 for at in await group.committed()])
    return f"{fault.__name__} {name}"
