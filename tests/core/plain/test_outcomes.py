"""Many calls to ZooKeeper at a time: their results, their errors, and how many are under way."""

from __future__ import annotations

import inspect

import anyio
import anyio.lowlevel
import pytest

from kzconsumer.errors import ConnectionLostError, KzConsumerError
from kzconsumer.zookeeper.watches import AT_ONCE, outcomes

MANY = 3 * AT_ONCE + 1


class Calls:
    def __init__(self) -> None:
        self.under_way = self.most = 0

    async def call(self, number: int) -> int:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(number % 3):
                await anyio.lowlevel.checkpoint()
        finally:
            self.under_way -= 1
        if number % 7 == 0:
            raise ConnectionLostError(str(number))
        return number


async def test_results_and_errors_are_in_the_order_of_the_calls() -> None:
    calls = Calls()
    found = await outcomes([calls.call(number) for number in range(MANY)])
    assert [str(each) if isinstance(each, KzConsumerError) else each for each in found] == [
        str(number) if number % 7 == 0 else number for number in range(MANY)
    ]


@pytest.mark.parametrize("at_once", [None, 4])
async def test_calls_are_not_begun_all_at_once(at_once: int | None) -> None:
    """To send 10,000 requests takes seconds, in which the event loop does nothing for the session."""
    calls = Calls()
    await outcomes([calls.call(number) for number in range(MANY)], *([at_once] if at_once else []))
    assert 1 < calls.most <= (at_once or AT_ONCE)


async def fails() -> int:
    raise ValueError


async def test_calls_that_were_not_begun_are_closed() -> None:
    calls = [Calls().call(number) for number in range(MANY)]
    with pytest.raises(ExceptionGroup):
        await outcomes([fails(), *calls])
    assert {inspect.getcoroutinestate(call) for call in calls} == {inspect.CORO_CLOSED}
