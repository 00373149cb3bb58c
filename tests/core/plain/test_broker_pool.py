"""Connections to brokers as their users share them: attempts, replacements, refusals, the end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from kzconsumer.brokers import connection as connection_module
from kzconsumer.brokers import pool as brokers_module
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import ListedOffset
from kzconsumer.brokers.transport import Security
from kzconsumer.clock import now
from kzconsumer.errors import (
    ConfigError,
    ConnectionLostError,
    SecurityError,
)
from tests.support.broker_peer import (
    REQUEST,
    T0,
    VERSIONS_WITH_SASL,
    Peer,
    as_user,
    greet_and_wait,
    listed,
    listening,
)


async def test_callers_at_the_same_time_share_one_attempt() -> None:
    async with listening(greet_and_wait) as broker, Brokers(client_id="test", timeout=10) as brokers:
        first, second, other = await asyncio.gather(
            brokers.connection(broker), brokers.connection(broker), brokers.connection(broker, "fetch")
        )
        assert first is second
        assert first is not other
        assert await brokers.connection(broker) is first
        assert len(brokers.connections) == 2
    assert first.closed
    assert other.closed
    with pytest.raises(ConnectionLostError, match="connections are closed"):
        await brokers.connection(broker)


async def test_a_failed_attempt_fails_all_waiting_callers_and_the_next_call_starts_a_new_one() -> None:
    async def serve(peer: Peer) -> None:
        if peer.number > 3:
            await greet_and_wait(peer)

    async with listening(serve) as broker, Brokers(client_id="test", timeout=10) as brokers:
        outcomes = await asyncio.gather(brokers.connection(broker), brokers.connection(broker), return_exceptions=True)
        assert all(isinstance(outcome, ConnectionLostError) for outcome in outcomes)
        assert not (await brokers.connection(broker)).closed


async def test_a_cancelled_caller_does_not_fail_the_others() -> None:
    async with listening(greet_and_wait) as broker, Brokers(client_id="test", timeout=10) as brokers:
        first = asyncio.ensure_future(brokers.connection(broker))
        second = asyncio.ensure_future(brokers.connection(broker))
        await asyncio.sleep(0)
        first.cancel()
        assert not (await second).closed


async def test_dropped_and_lost_connections_are_reopened() -> None:
    async with listening(greet_and_wait) as broker, Brokers(client_id="test", timeout=10) as brokers:
        first = await brokers.connection(broker)
        brokers.drop(first)
        assert first.closed
        second = await brokers.connection(broker)
        second.close()
        third = await brokers.connection(broker)
        brokers.drop(first)
        assert not third.closed
        assert await brokers.connection(broker) is third


async def test_a_broker_that_moved_is_followed() -> None:
    async with (
        listening(greet_and_wait) as here,
        listening(greet_and_wait) as there,
        Brokers(client_id="test", timeout=10) as brokers,
    ):
        first = await brokers.connection(here)
        second = await brokers.connection(there)
        assert first.closed
        assert second.broker == there
        assert len(brokers.connections) == 1


async def test_closing_the_pool_ends_attempts_and_their_waiters() -> None:
    async def serve(peer: Peer) -> None:
        await peer.reader.read()

    async with listening(serve) as broker:
        async with Brokers(client_id="test", timeout=60) as brokers:
            waiting = asyncio.ensure_future(brokers.connection(broker))
            await asyncio.sleep(0.05)
        with pytest.raises(ConnectionLostError, match="connections are closed"):
            await waiting


async def reject_password(peer: Peer) -> None:
    _, correlation = await peer.request()
    peer.answer(correlation, VERSIONS_WITH_SASL)
    api_key, correlation = await peer.request()
    assert api_key == 17
    peer.answer(correlation, bytes.fromhex("0000 00000001 0005 504c41494e"))
    size = int.from_bytes(await peer.reader.readexactly(4), "big")
    assert await peer.reader.readexactly(size) == b"\0me\0secret"


async def test_a_broker_that_rejects_the_password_is_not_retried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = 0

    async def serve(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        await reject_password(peer)

    async with listening(serve) as broker, Brokers(client_id="test", timeout=10, security=as_user) as brokers:
        for purpose in ("control", "fetch", "control", "fetch"):
            with pytest.raises(SecurityError, match="PLAIN as me: the broker hung up"):
                await brokers.connection(broker, purpose)
        assert connections == 1
        monkeypatch.setattr(brokers_module, "now", lambda: now() + brokers_module.PAUSE_AFTER_REFUSAL)
        with pytest.raises(SecurityError, match="PLAIN as me: the broker hung up"):
            await brokers.connection(broker)
        assert connections == 2


async def test_a_connection_is_not_replaced_while_a_call_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its SASL session of 100 s is nearly over: the call is answered, and the next caller gets another connection."""
    answer_now = asyncio.Event()

    async def serve(peer: Peer) -> None:
        _, correlation = await peer.request()
        peer.answer(
            correlation, bytes.fromhex("0000 00000004 0002 0000 0001 0011 0000 0001 0012 0000 0003 0024 0000 0001")
        )
        _, correlation = await peer.request()
        peer.answer(correlation, bytes.fromhex("0000 00000001 0005 504c41494e"))
        _, correlation = await peer.request()
        peer.answer(correlation, bytes.fromhex("0000 ffff 00000000") + (100_000).to_bytes(8, "big"))
        _, correlation = await peer.request()
        await answer_now.wait()
        peer.answer(correlation, listed(peer.number))
        await peer.reader.read()

    async with listening(serve) as broker, Brokers(client_id="test", timeout=10, security=as_user) as brokers:
        first = await brokers.connection(broker)
        call = first.send(REQUEST, timeout=10)
        monkeypatch.setattr(connection_module, "now", lambda: now() + 81)
        assert await brokers.connection(broker) is first
        answer_now.set()
        assert await call == {T0: ListedOffset(0, 1, -1)}
        assert await brokers.connection(broker) is not first
        assert first.closed


async def test_credential_files_that_have_become_unreadable_fail_the_attempt() -> None:
    def unreadable() -> Security:
        raise ConfigError(["group.toml: [brokers.tls] ca: gone"])

    async with listening(greet_and_wait) as broker, Brokers(client_id="t", timeout=10, security=unreadable) as brokers:
        with pytest.raises(SecurityError, match=r"broker 7 .*: group.toml: \[brokers.tls\] ca: gone"):
            await brokers.connection(broker)


async def test_a_broker_that_is_reached_is_not_refused_whatever_was_known_of_it_before() -> None:
    """Its cluster is known once a broker has said so."""
    readable = False

    def security() -> Security:
        if not readable:
            raise ConfigError(["group.toml: [brokers.tls] ca: gone"])
        return Security()

    async with listening(greet_and_wait) as broker, Brokers(client_id="t", timeout=10, security=security) as brokers:
        with pytest.raises(SecurityError):
            await brokers.connection(broker)
        assert brokers.refused
        readable = True
        await brokers.connection(msgspec.structs.replace(broker, cluster="of-ours"))
        assert not brokers.refused


async def test_an_exception_of_the_body_is_raised_unchanged() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with Brokers(client_id="test", timeout=10):
            raise ValueError("mine")
