"""How a connection to a broker begins: with one that says what it speaks, an old one, and what is no broker."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import ListedOffset
from kzconsumer.brokers.protocol.versions import BEFORE_API_VERSIONS
from kzconsumer.errors import (
    BrokerError,
    ConnectionLostError,
    ProtocolError,
    UnsupportedVersionError,
)
from kzconsumer.model import Broker
from tests.support.agreed_versions import agreed
from tests.support.broker_peer import (
    REQUEST,
    T0,
    VERSIONS,
    Peer,
    as_user,
    greet_and_wait,
    listed,
    listening,
    open_to,
)


async def test_a_peer_that_hangs_up_once_is_not_taken_for_an_old_broker() -> None:
    async def serve(peer: Peer) -> None:
        if peer.number == 1:
            await peer.request()
            return
        await peer.greet()
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        assert agreed(connection.versions) == "ListOffsets 1"
        connection.close()


async def requests_before_0_10(peer: Peer) -> AsyncIterator[int]:
    """The api keys, in turn with the answers: ListOffsets gets one, at ApiVersions the peer hangs up."""
    api_key = 2
    while api_key == 2:
        api_key, correlation = await peer.request()
        yield api_key
        if api_key == 2:
            peer.answer(correlation, b"\0\0\0\0")


async def test_a_peer_that_hangs_up_twice_and_again_after_it_has_answered_is_an_old_broker() -> None:
    asked: defaultdict[int, list[int]] = defaultdict(list)

    async def serve(peer: Peer) -> None:
        async for api_key in requests_before_0_10(peer):
            asked[peer.number].append(api_key)

    async with listening(serve) as broker:
        connection = await open_to(broker)
        assert connection.versions is BEFORE_API_VERSIONS
        assert not connection.closed
        assert asked == {1: [18], 2: [18], 3: [2, 18], 4: [2]}
        connection.close()


async def test_a_modern_broker_of_which_two_connections_were_cut_is_not_taken_for_an_old_one() -> None:
    async def serve(peer: Peer) -> None:
        api_key, correlation = await peer.request()
        if peer.number <= 2:
            return
        assert (peer.number, api_key) == (3, 2)
        peer.answer(correlation, b"\0\0\0\0")
        await greet_and_wait(peer)

    async with listening(serve) as broker:
        connection = await open_to(broker)
        assert agreed(connection.versions) == "ListOffsets 1"
        assert not connection.closed
        connection.close()


async def test_a_peer_that_says_nothing_to_api_versions_and_answers_what_follows_is_an_old_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As 0.9 does."""
    monkeypatch.setattr("kzconsumer.brokers.connection._SILENCE_OF_0_9", 0.05)
    asked: defaultdict[int, list[int]] = defaultdict(list)

    async def serve(peer: Peer) -> None:
        while True:
            api_key, correlation = await peer.request()
            asked[peer.number].append(api_key)
            if api_key != 18:
                peer.answer(correlation, b"\0\0\0\0")

    async with listening(serve) as broker:
        connection = await open_to(broker)
        assert connection.versions is BEFORE_API_VERSIONS
        assert not connection.closed
        assert asked == {1: [18, 15], 2: [2]}
        connection.close()


async def test_a_modern_broker_that_is_slow_is_not_taken_for_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers in order, however late."""
    monkeypatch.setattr("kzconsumer.brokers.connection._SILENCE_OF_0_9", 0.05)

    async def serve(peer: Peer) -> None:
        (first, versions), (second, groups) = await peer.request(), await peer.request()
        assert (first, second) == (18, 15)
        peer.answer(versions, VERSIONS)
        peer.answer(groups, b"\0\0\0\0")
        _, correlation = await peer.request()
        peer.answer(correlation, listed(3))
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        assert agreed(connection.versions) == "ListOffsets 1"
        assert await connection.call(REQUEST, timeout=10) == {T0: ListedOffset(0, 3, -1)}
        connection.close()


async def test_a_peer_that_always_hangs_up_is_no_broker() -> None:
    async def serve(peer: Peer) -> None:
        await peer.request()

    async with listening(serve) as broker:
        with pytest.raises(ConnectionLostError, match="on ApiVersions too"):
            await open_to(broker)


async def test_connecting_to_a_silent_peer_times_out() -> None:
    async def serve(peer: Peer) -> None:
        await peer.reader.read()

    async with listening(serve) as broker:
        with pytest.raises(ConnectionLostError, match=r"within 0\.2 s"):
            await open_to(broker, timeout=0.2)


async def test_whatever_a_peer_answers_to_api_versions_is_an_error_that_callers_expect() -> None:
    """As a server of something else does, or a broker of whose answer some bytes are changed, or missing."""
    chance, opened, failed = random.Random(1), 0, list[str]()

    async def serve(peer: Peer) -> None:
        _, correlation = await peer.request()
        answer = bytearray(correlation.to_bytes(4, "big") + VERSIONS)
        for _ in range(chance.randrange(3)):
            answer[chance.randrange(len(answer))] = chance.randrange(256)
        del answer[chance.choice((len(answer), len(answer), chance.randrange(len(answer)))) :]
        peer.writer.write(chance.choice((b"HTTP/1.1 400 Bad", len(answer).to_bytes(4, "big"))) + answer)

    async with listening(serve) as broker:
        for _ in range(40):
            try:
                connection = await open_to(broker)
            except (BrokerError, ConnectionLostError, ProtocolError, UnsupportedVersionError) as error:
                failed.append(str(error))
            else:
                opened += 1
                connection.close()
        assert all(str(broker) in each for each in failed)
    assert 0 < opened < 20


async def test_a_peer_that_refuses_to_report_its_versions() -> None:
    async def serve(peer: Peer) -> None:
        _, correlation = await peer.request()
        peer.answer(correlation, bytes.fromhex("0023 00000000"))
        await peer.reader.read()

    async with listening(serve) as broker:
        with pytest.raises(BrokerError, match=r"ApiVersions: UNSUPPORTED_VERSION \(35\)"):
            await open_to(broker)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 1), ("127.0.0.1", 70000), ("a" * 70, 9092), ("", -1)])
async def test_a_refused_connection(host: str, port: int) -> None:
    with pytest.raises(ConnectionLostError, match="broker 7"):
        await open_to(Broker(7, host, port))


@pytest.mark.parametrize("silent_at", [(1, 18), (3, 2), (3, 18), (4, 2)])  # number of the connection, api key
async def test_a_cancelled_opening_closes_its_socket(silent_at: tuple[int, int]) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def serve(peer: Peer) -> None:
        async for api_key in requests_before_0_10(peer):
            if (peer.number, api_key) == silent_at:
                asked.set()
                with suppress(ConnectionError):
                    await peer.reader.read()
                ended.set()

    async with listening(serve) as broker:
        opening = asyncio.ensure_future(open_to(broker, timeout=60))
        await asyncio.wait_for(asked.wait(), 10)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(ended.wait(), 10)


async def test_a_broker_that_hangs_up_before_sasl_has_not_refused_the_client() -> None:
    """It may be too old, or have reached a limit of connections, or be stopping: it is tried again at once."""

    async def serve(peer: Peer) -> None:
        await peer.request()

    async with listening(serve) as broker, Brokers(client_id="test", timeout=10, security=as_user) as brokers:
        with pytest.raises(ConnectionLostError, match=r"hung up on ApiVersions: .*max\.connections.*before 0\.10"):
            await brokers.connection(broker)
        assert not brokers.refused
