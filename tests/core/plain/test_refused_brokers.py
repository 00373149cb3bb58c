"""A broker that refuses us is left alone for a while, and counts as refused until it lets us in."""

from __future__ import annotations

import pytest

from kzconsumer.brokers import pool
from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.pool import Brokers
from kzconsumer.errors import SecurityError
from kzconsumer.model import Broker
from tests.support.simulated.virtual_time import World, clock_of

BROKER = Broker(1, "broker", 9092)


class Open(BrokerConnection):
    """One without a socket."""

    def __init__(self) -> None:
        self.broker = BROKER

    @property
    def closed(self) -> bool:
        return False

    @property
    def worn_out(self) -> bool:
        return False

    def close(self) -> None:
        pass


async def test_a_broker_that_lets_us_in_again_is_refused_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[SecurityError | Open] = [SecurityError("no such user"), SecurityError("no such user"), Open()]

    async def open_one(*_: object, **__: object) -> BrokerConnection:
        answer = answers.pop(0)
        if isinstance(answer, SecurityError):
            raise answer
        return answer

    monkeypatch.setattr(BrokerConnection, "open", open_one)
    world = World(1)
    with clock_of(world):
        async with Brokers(client_id="c", timeout=1.0) as brokers:
            assert not brokers.refused
            for _ in range(2):
                with pytest.raises(SecurityError):
                    await brokers.connection(BROKER)
                assert brokers.refused
                with pytest.raises(SecurityError):
                    await brokers.connection(BROKER)  # without another attempt
                world.now += pool.PAUSE_AFTER_REFUSAL + 1
            connection = await brokers.connection(BROKER)
            assert not brokers.refused
            assert await brokers.connection(BROKER) is connection
