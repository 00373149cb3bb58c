"""A broker that refuses us is left alone for a while, and counts as refused until it lets us in."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from kzconsumer.brokers import connection, pool
from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.transport import BrokerTransport
from kzconsumer.errors import ConnectionLostError, KzConsumerError, ProtocolError, SecurityError
from kzconsumer.model import Broker
from kzconsumer.security.sasl import Sasl
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

    def close(self, *args: object, **kwargs: object) -> None:
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
            present = await brokers.connection(BROKER)
            assert not brokers.refused
            assert await brokers.connection(BROKER) is present


@pytest.mark.parametrize("reason", [ConnectionLostError("no answer in 1 s"), ProtocolError("a frame of -1 bytes")])
async def test_why_there_is_no_connection_is_said_to_all_that_wait_for_it(
    reason: KzConsumerError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent requests share one attempt. A request after it has failed starts the next attempt."""
    attempts = [0]

    async def open_none(*_: object, **__: object) -> BrokerConnection:
        attempts[0] += 1
        await anyio.sleep(0.01)
        raise reason

    monkeypatch.setattr(BrokerConnection, "open", open_none)
    async with Brokers(client_id="c", timeout=1.0) as brokers:
        for attempt in (1, 2):
            found = await asyncio.gather(*(brokers.connection(BROKER) for _ in range(3)), return_exceptions=True)
            assert found == [reason] * 3
            assert attempts == [attempt]
        assert not brokers.refused
        assert brokers.present(BROKER) is None


@pytest.mark.parametrize("lifetime", [0.0, 100.0])
async def test_a_connection_is_used_for_most_of_what_its_login_is_good_for(
    lifetime: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from when it began; the broker ends it at the end (KIP-368). One without a lifetime is used on."""
    world = World(1)

    async def log_in(*_: object) -> float:
        world.now += 1.0
        return lifetime

    monkeypatch.setattr(connection, "authenticate", log_in)
    with clock_of(world):
        made = BrokerConnection(cast(BrokerTransport, SimpleNamespace(broker=BROKER, in_flight=())))
        began = world.now
        await made._authenticate(cast(Sasl, object()), 5.0)
        for after, worn_out in ((1.0, False), (79.0, False), (81.0, lifetime > 0)):
            world.now = began + after
            made._used = world.now
            assert made.worn_out is worn_out
