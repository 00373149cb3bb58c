"""The one signal: coalesced, never lost, and the timer that replaces a missing one."""

from __future__ import annotations

import asyncio

import anyio

from kzconsumer.group.rebalancer import LONGEST_QUIET_PERIOD, MEMBERS, QUIET_PERIOD, Calm, RebalanceTrigger
from tests.support.simulated.virtual_time import in_virtual_time

LIMIT = 2.0


async def reasons(trigger: RebalanceTrigger, timeout: float | None = None) -> list[str]:
    async with asyncio.timeout(LIMIT):
        return await trigger.wait(timeout)


@in_virtual_time
async def test_reasons_are_coalesced_in_order_and_cause_one_rebalance_each_time() -> None:
    trigger = RebalanceTrigger()
    assert not trigger.fired
    for reason in ("members", "topic a", "members"):
        trigger.fire(reason)
    assert trigger.fired
    assert await reasons(trigger) == ["members", "topic a"]
    assert not trigger.fired
    trigger.fire("topic a")
    trigger.fire("members")
    assert await reasons(trigger) == ["topic a", "members"]
    assert await reasons(trigger, 0.03) == []


@in_virtual_time
async def test_reasons_in_the_quiet_period_are_part_of_it() -> None:
    trigger = RebalanceTrigger()
    waiting = asyncio.create_task(reasons(trigger))
    await asyncio.sleep(0)
    trigger.fire("members")
    await asyncio.sleep(0.002)
    trigger.fire("brokers")
    assert await waiting == ["members", "brokers"]


@in_virtual_time
async def test_without_timer_and_reason_it_waits() -> None:
    trigger = RebalanceTrigger()
    with anyio.move_on_after(0.05) as scope:
        await trigger.wait(None)
    assert scope.cancelled_caught


@in_virtual_time
async def test_a_cancelled_wait_loses_no_reason() -> None:
    trigger = RebalanceTrigger()
    waiting = asyncio.create_task(trigger.wait(None))
    await asyncio.sleep(0)
    trigger.fire("members")
    await asyncio.sleep(0.002)  # now inside the quiet period
    waiting.cancel()
    await asyncio.wait([waiting])
    assert await reasons(trigger) == ["members"]


@in_virtual_time
async def test_a_reason_that_is_taken_is_acted_on() -> None:
    trigger = RebalanceTrigger()
    assert not trigger.take(MEMBERS)
    trigger.fire(MEMBERS)
    assert trigger.take(MEMBERS)
    assert not trigger.fired
    assert await reasons(trigger, 0.03) == []
    trigger.fire("topic a")
    trigger.fire(MEMBERS)
    assert trigger.take(MEMBERS)
    assert await reasons(trigger) == ["topic a"]


def test_a_single_change_of_members_is_not_delayed() -> None:
    calm = Calm()
    assert calm.window(100.0, ["start"]) == 0.0
    calm.acted(100.1)
    assert calm.window(100.1 + LONGEST_QUIET_PERIOD + 0.01, ["topic a", MEMBERS]) == 0.0


def test_changes_of_members_that_follow_each_other_have_to_stand_still_for_longer_and_longer() -> None:
    calm = Calm()
    calm.window(100.0, ["start"])
    windows = []
    for number in range(1, 6):
        calm.acted(100.0 + number / 2)
        windows.append(calm.window(100.1 + number / 2, [MEMBERS]))
    assert windows == sorted(windows)
    assert windows[0] == 4 * QUIET_PERIOD
    assert windows[-1] == windows[-2] == LONGEST_QUIET_PERIOD / 4
    calm.acted(110.0)
    assert calm.window(112.0, [MEMBERS]) == 0.0


def test_other_reasons_are_not_delayed() -> None:
    calm = Calm()
    calm.acted(100.0)
    calm.window(100.1, [MEMBERS])
    assert calm.window(100.2, ["owner of a-0"]) == 0.0
