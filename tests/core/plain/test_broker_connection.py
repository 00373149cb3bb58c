"""A connection to a peer that is not a broker: bytes that arrive late, are invalid or do not arrive."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct

import anyio
import pytest
import trustme

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest
from kzconsumer.brokers.protocol.log_reads import ListedOffset, ListOffsetsRequest
from kzconsumer.brokers.transport import Security
from kzconsumer.errors import (
    ConnectionLostError,
    ProtocolError,
    SecurityError,
    UnsupportedVersionError,
)
from kzconsumer.model import TopicPartition
from kzconsumer.security.sasl import Exchange, Sasl
from tests.support.agreed_versions import agreed
from tests.support.broker_peer import (
    REQUEST,
    T0,
    VERSIONS_WITH_SASL,
    Peer,
    listed,
    listening,
    open_to,
)
from tests.support.zookeeper_sessions import until


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


AUTHORITY = trustme.CA()


def over_tls() -> tuple[ssl.SSLContext, Security]:
    """The peer's side, and ours."""
    peer, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(peer)
    AUTHORITY.configure_trust(ours)
    return peer, Security(ours)


@pytest.mark.parametrize("secured", [False, True])
async def test_a_large_response_is_read_without_iterations_of_the_event_loop(looks: list[int], secured: bool) -> None:
    """Not where the bytes of the socket are those of TLS."""
    tls, security = over_tls() if secured else (None, None)
    offsets = range(60_000)
    of_all = ListOffsetsRequest(dict.fromkeys((TopicPartition("t", n) for n in offsets), -1))

    async def serve(peer: Peer) -> None:
        await peer.greet()
        for _ in range(3):
            for body in (listed_all(offsets), listed(7)):
                _, correlation = await peer.request()
                peer.answer(correlation, body)
            await peer.writer.drain()

    async with listening(serve, tls) as broker:
        connection = await open_to(broker, security=security)
        for _ in range(3):
            large, small = await asyncio.gather(
                connection.call(of_all, timeout=10), connection.call(REQUEST, timeout=10)
            )
            assert [large[TopicPartition("t", n)].offset for n in offsets] == list(offsets)
            assert small[T0].offset == 7
        connection.close()
    assert not looks if secured else sum(looks) > 1 << 20


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
