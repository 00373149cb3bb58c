"""A connection to a peer that is not a broker: bytes that arrive late, are invalid or do not arrive."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from kzconsumer.brokers import connection as connection_module
from kzconsumer.brokers import pool as brokers_module
from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest
from kzconsumer.brokers.protocol.log_reads import ListedOffset, ListOffsetsRequest
from kzconsumer.brokers.protocol.versions import BEFORE_API_VERSIONS
from kzconsumer.brokers.transport import Security
from kzconsumer.clock import now
from kzconsumer.errors import (
    BrokerError,
    ConfigError,
    ConnectionLostError,
    ProtocolError,
    SecurityError,
    UnsupportedVersionError,
)
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.security.sasl import Exchange, Sasl, with_password
from tests.support.agreed_versions import agreed
from tests.support.zookeeper_sessions import until

VERSIONS = bytes.fromhex("0000 00000002 0002 0000 0001 0012 0000 0003")  # ListOffsets 0 to 1, ApiVersions 0 to 3
T0 = TopicPartition("t", 0)
REQUEST = ListOffsetsRequest({T0: -1})


def listed(offset: int) -> bytes:
    return bytes.fromhex("00000001 0001 74 00000001 00000000 0000 ffffffffffffffff") + offset.to_bytes(8, "big")


class Peer:
    """The other end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader = reader
        self.writer = writer
        self.number = number

    async def request(self) -> tuple[int, int]:
        """(api key, correlation id) of the next request."""
        frame = await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))
        return int.from_bytes(frame[:2], "big"), int.from_bytes(frame[4:8], "big")

    def answer(self, correlation: int, body: bytes) -> None:
        self.writer.write((4 + len(body)).to_bytes(4, "big") + correlation.to_bytes(4, "big") + body)

    async def greet(self) -> None:
        api_key, correlation = await self.request()
        assert api_key == 18
        self.answer(correlation, VERSIONS)


@asynccontextmanager
async def listening(serve: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[Broker]:
    """`serve` is called for each connection, which is closed when it returns; an exception in it fails the test."""
    tasks: list[asyncio.Task[None]] = []
    connections = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        connections += 1
        try:
            await serve(Peer(reader, writer, connections))
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Broker(7, "127.0.0.1", port)
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, asyncio.CancelledError | asyncio.IncompleteReadError | ConnectionError
            ):
                raise outcome


async def open_to(broker: Broker, timeout: float = 10.0) -> BrokerConnection:
    return await BrokerConnection.open(broker, client_id="test", timeout=timeout)


async def test_responses_reach_their_calls_in_order_however_they_are_split() -> None:
    async def serve(peer: Peer) -> None:
        await peer.greet()
        requests = [await peer.request() for _ in range(3)]
        stream = b""
        for number, (_, correlation) in enumerate(requests):
            body = listed(number)
            stream += (4 + len(body)).to_bytes(4, "big") + correlation.to_bytes(4, "big") + body
        for at in range(0, len(stream), 5):
            peer.writer.write(stream[at : at + 5])
            await peer.writer.drain()
            await asyncio.sleep(0)
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        assert agreed(connection.versions) == "ListOffsets 1"
        answers = await asyncio.gather(*(connection.call(REQUEST, timeout=10) for _ in range(3)))
        assert answers == [{T0: ListedOffset(0, number, -1)} for number in range(3)]
        connection.close()
        connection.close()
        assert connection.closed
        with pytest.raises(ConnectionLostError, match="closed by us"):
            await connection.call(REQUEST, timeout=10)


async def test_a_request_unknown_to_the_peer_is_not_sent() -> None:
    async def serve(peer: Peer) -> None:
        await peer.greet()
        assert await peer.request() == (2, 1)

    async with listening(serve) as broker:
        connection = await open_to(broker)
        with pytest.raises(UnsupportedVersionError):
            await connection.call(MetadataRequest(None), timeout=10)
        with pytest.raises(ConnectionLostError):
            await connection.call(REQUEST, timeout=10)


async def test_a_call_that_times_out_ends_the_connection_and_all_calls() -> None:
    async def serve(peer: Peer) -> None:
        await peer.greet()
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        other = asyncio.ensure_future(connection.call(REQUEST, timeout=60))
        await asyncio.sleep(0)  # it has been sent
        with pytest.raises(ConnectionLostError, match=r"no answer to ListOffsets within 0\.1 s"), anyio.fail_after(10):
            await connection.call(REQUEST, timeout=0.1)
        assert (connection.timed_out, connection.ended_by_peer) == (True, False)
        with pytest.raises(ConnectionLostError, match=r"within 0\.1 s"):
            await other
        assert connection.closed


async def test_each_call_has_its_own_deadline() -> None:
    """Also one that is made before the deadline of another, or after that has been answered."""

    async def serve(peer: Peer) -> None:
        await peer.greet()
        _, correlation = await peer.request()
        peer.answer(correlation, listed(1))
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        assert await connection.call(REQUEST, timeout=0.1)
        began = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionLostError, match=r"within 0\.3 s"):
            await connection.call(REQUEST, timeout=0.3)
        assert 0.3 <= asyncio.get_running_loop().time() - began < 10


async def answers_twice(peer: Peer) -> None:
    await peer.greet()
    for _ in range(2):
        _, correlation = await peer.request()
        peer.answer(correlation, listed(1))
    await peer.reader.read()


async def test_a_response_is_taken_in_the_turn_of_the_event_loop_that_reads_it() -> None:
    async with listening(answers_twice) as broker:
        connection = await open_to(broker)
        taken: list[object] = []
        wait = asyncio.ensure_future(connection.send(REQUEST, timeout=10).taken_by(taken.append))
        async with asyncio.timeout(10):
            while not taken:
                assert not wait.done()
                await asyncio.sleep(0)
        assert not wait.done(), "taken before the caller runs"
        await wait
        given_up = asyncio.ensure_future(connection.send(REQUEST, timeout=10).taken_by(taken.append))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(ConnectionLostError, match="no answer"):
            await connection.call(REQUEST, timeout=0.3)
        assert taken == [{T0: ListedOffset(0, 1, -1)}], "a caller that has given up takes nothing"


async def test_what_the_taking_of_a_response_raises_is_the_callers() -> None:
    def fail(answer: object) -> None:
        raise ValueError(answer)

    async with listening(answers_twice) as broker:
        connection = await open_to(broker)
        with pytest.raises(ValueError, match="ListedOffset"):
            await connection.send(REQUEST, timeout=10).taken_by(fail)
        assert await connection.call(REQUEST, timeout=10) == {T0: ListedOffset(0, 1, -1)}


async def test_a_closing_peer_ends_all_calls() -> None:
    async def serve(peer: Peer) -> None:
        await peer.greet()
        await peer.request()
        await peer.request()
        peer.writer.write(b"\0\0\0\x40\0\0")

    async with listening(serve) as broker:
        connection = await open_to(broker)
        outcomes = await asyncio.gather(
            connection.call(REQUEST, timeout=10), connection.call(REQUEST, timeout=10), return_exceptions=True
        )
        assert len({str(outcome) for outcome in outcomes}) == 1
        assert str(outcomes[0]).startswith(f"{broker}: closed by the broker")
        assert all(isinstance(outcome, ConnectionLostError) for outcome in outcomes)
        assert connection.closed


def listed_all(offsets: range) -> bytes:
    each = b"".join(n.to_bytes(4, "big") + b"\0\0" + b"\xff" * 8 + n.to_bytes(8, "big") for n in offsets)
    return bytes.fromhex("00000001 0001 74") + len(offsets).to_bytes(4, "big") + each


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each read without an iteration of the event loop has returned."""
    returned: list[int] = []
    readv = os.readv

    def counted(socket: int, buffers: list[memoryview]) -> int:
        returned.append(readv(socket, buffers))
        return returned[-1]

    monkeypatch.setattr(os, "readv", counted)
    return returned


async def test_a_large_response_is_read_without_iterations_of_the_event_loop(looks: list[int]) -> None:
    offsets = range(60_000)
    of_all = ListOffsetsRequest(dict.fromkeys((TopicPartition("t", n) for n in offsets), -1))

    async def serve(peer: Peer) -> None:
        await peer.greet()
        for _ in range(3):
            for body in (listed_all(offsets), listed(7)):
                _, correlation = await peer.request()
                peer.answer(correlation, body)
            await peer.writer.drain()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        for _ in range(3):
            large, small = await asyncio.gather(
                connection.call(of_all, timeout=10), connection.call(REQUEST, timeout=10)
            )
            assert [large[TopicPartition("t", n)].offset for n in offsets] == list(offsets)
            assert small[T0].offset == 7
        connection.close()
    assert sum(looks) > 1 << 20


@pytest.mark.parametrize(("linger", "why"), [(True, "closed by the broker"), (False, "reset by peer")])
async def test_a_peer_that_closes_within_a_large_response_is_reported_as_closed(
    looks: list[int], linger: bool, why: str
) -> None:
    begun = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.greet()
        _, correlation = await peer.request()
        body = listed_all(range(200_000))
        peer.writer.write((4 + len(body)).to_bytes(4, "big") + correlation.to_bytes(4, "big") + body[:-1])
        await peer.writer.drain()
        if not linger:
            await begun.wait()
            now_or_never = struct.pack("ii", 1, 0)
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now_or_never)
            peer.writer.transport.abort()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        call = asyncio.ensure_future(connection.call(REQUEST, timeout=10))
        await until(lambda: sum(looks) > 1 << 20)
        begun.set()
        with pytest.raises(ConnectionLostError, match=why):
            await call
        assert connection.closed
        assert connection.ended_by_peer


async def test_a_cancelled_call_does_not_affect_the_responses_of_others() -> None:
    cancelled = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.greet()
        for number in range(2):
            _, correlation = await peer.request()
            await cancelled.wait()
            peer.answer(correlation, listed(number))
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        first = asyncio.ensure_future(connection.call(REQUEST, timeout=10))
        second = asyncio.ensure_future(connection.call(REQUEST, timeout=10))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        cancelled.set()
        assert await second == {T0: ListedOffset(0, 1, -1)}
        connection.close()


async def test_a_cancelled_call_without_response_still_ends_the_connection() -> None:
    async def serve(peer: Peer) -> None:
        await peer.greet()
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        first = asyncio.ensure_future(connection.call(REQUEST, timeout=0.2))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(ConnectionLostError, match=r"within 0\.2 s"):
            await connection.call(REQUEST, timeout=30)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "a response of 1213486160 bytes"),
        (b"\0\0\0\4\0\0\0\x63", "response 99 arrived where response 1 was expected"),
        (b"\0\0\0\6\0\0\0\1\0\0", "malformed ListOffsets v1 response"),
    ],
)
async def test_invalid_bytes_are_a_protocol_error_for_their_call_and_a_lost_connection_for_the_others(
    data: bytes, why: str
) -> None:
    async def serve(peer: Peer) -> None:
        await peer.greet()
        await peer.request()
        await peer.request()
        peer.writer.write(data)
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        first, second = await asyncio.gather(
            connection.call(REQUEST, timeout=10), connection.call(REQUEST, timeout=10), return_exceptions=True
        )
        assert isinstance(first, ProtocolError)
        assert str(first).startswith(f"{broker}: {why}")
        assert isinstance(second, ConnectionLostError)
        assert connection.closed


async def test_a_response_without_request_ends_the_connection() -> None:
    async def serve(peer: Peer) -> None:
        await peer.greet()
        _, correlation = await peer.request()
        body = listed(3)
        answer = (4 + len(body)).to_bytes(4, "big") + correlation.to_bytes(4, "big") + body
        peer.writer.write(answer + answer)
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        assert await connection.call(REQUEST, timeout=10) == {T0: ListedOffset(0, 3, -1)}
        with pytest.raises(ConnectionLostError, match="a response to no request"):
            await connection.call(REQUEST, timeout=10)
        assert connection.closed


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


async def greet_and_wait(peer: Peer) -> None:
    await peer.greet()
    await peer.reader.read()


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


VERSIONS_WITH_SASL = bytes.fromhex("0000 00000003 0002 0000 0001 0011 0000 0000 0012 0000 0003")


def as_user(password: str = "secret") -> Security:
    return Security(sasl=with_password("PLAIN", "me", password.encode()))


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


async def test_tokens_without_headers_are_sent_up_to_the_last_one_which_is_not_answered() -> None:
    """As with Kerberos and brokers before 1.0."""

    def exchange(host: str) -> Exchange:
        assert (yield b"first") == b"challenge"
        return b"last"

    received = list[bytes]()

    async def serve(peer: Peer) -> None:
        _, correlation = await peer.request()
        peer.answer(correlation, VERSIONS_WITH_SASL)
        _, correlation = await peer.request()
        peer.answer(correlation, bytes.fromhex("0000 00000001 0006 475353415049"))
        for answer in (b"\0\0\0\x09challenge", b""):
            size = int.from_bytes(await peer.reader.readexactly(4), "big")
            received.append(await peer.reader.readexactly(size))
            peer.writer.write(answer)
        _, correlation = await peer.request()
        peer.answer(correlation, listed(peer.number))

    security = Security(sasl=Sasl("GSSAPI", "as me", exchange))
    async with (
        listening(serve) as broker,
        Brokers(client_id="test", timeout=10, security=lambda: security) as brokers,
    ):
        assert await (await brokers.connection(broker)).call(REQUEST, timeout=10) == {T0: ListedOffset(0, 1, -1)}
        assert received == [b"first", b"last"]


async def test_credential_files_that_have_become_unreadable_fail_the_attempt() -> None:
    def unreadable() -> Security:
        raise ConfigError(["group.toml: [brokers.tls] ca: gone"])

    async with listening(greet_and_wait) as broker, Brokers(client_id="t", timeout=10, security=unreadable) as brokers:
        with pytest.raises(SecurityError, match=r"broker 7 .*: group.toml: \[brokers.tls\] ca: gone"):
            await brokers.connection(broker)


async def test_a_broker_that_hangs_up_before_sasl_has_not_refused_the_client() -> None:
    """It may be too old, or have reached a limit of connections, or be stopping: it is tried again at once."""

    async def serve(peer: Peer) -> None:
        await peer.request()

    async with listening(serve) as broker, Brokers(client_id="test", timeout=10, security=as_user) as brokers:
        with pytest.raises(ConnectionLostError, match=r"hung up on ApiVersions: .*max\.connections.*before 0\.10"):
            await brokers.connection(broker)
        assert not brokers.refused


async def test_bytes_that_were_damaged_on_their_way_are_no_refusal() -> None:
    """They are of a connection that the broker has served: what was lost is logged, and no certificate is blamed."""

    async def serve(peer: Peer) -> None:
        await peer.greet()
        await peer.reader.read()

    async with listening(serve) as broker:
        connection = await open_to(broker)
        answer = connection.send(REQUEST, timeout=10)
        connection.transport.connection_lost(ssl.SSLError(1, "[SSL] decryption failed or bad record mac"))
        with pytest.raises(ConnectionLostError, match="bad record mac") as lost:
            await answer
        assert not isinstance(lost.value, SecurityError)


async def test_an_exception_of_the_body_is_raised_unchanged() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with Brokers(client_id="test", timeout=10):
            raise ValueError("mine")
