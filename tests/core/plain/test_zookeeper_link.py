"""The link against a server that sends what no ZooKeeper would, in arbitrary pieces."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import re
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kzconsumer.errors import ConnectionLostError, ProtocolError, SecurityError
from kzconsumer.registry.cluster import unreachable
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.zookeeper import link as link_module
from kzconsumer.zookeeper import server_choice, wire
from kzconsumer.zookeeper.link import LARGE, CallerRequest, HungUp, Link
from kzconsumer.zookeeper.operations import ERROR_CODES, Check, ConnectString, Create, Handling, SetData, Stat
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watch_table import EventType
from kzconsumer.zookeeper.wire import Reply, WireRequest, event
from tests.fuzz.mutations import mutate
from tests.support.simulated import zookeeper_frames as frames
from tests.support.zookeeper_sessions import until

HELLO = struct.pack("!iiqi", 0, 6000, 7, 16) + bytes(16) + b"\0"


def frame(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


def reply(xid: int, zxid: int = 5, code: int = 0, body: bytes = b"") -> bytes:
    return frame(struct.pack("!iqi", xid, zxid, code) + body)


class Recorded:
    """A call that records its outcome."""

    def __init__(self) -> None:
        self.outcome: Reply | str | None = None

    def answered(self, reply: Reply) -> None:
        self.outcome = reply
        if reply.code == -4:
            raise ConnectionLostError("no use")

    def lost(self, reason: str) -> None:
        self.outcome = reason


@asynccontextmanager
async def served(answers: Sequence[bytes]) -> AsyncIterator[int]:
    """The port of a server that sends these on each connection, one for each frame. All are closed at the end."""
    connections: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(ended := asyncio.Event())
        with contextlib.suppress(OSError):
            for answer in answers:
                await reader.read(65536)
                writer.write(answer)
            await reader.read()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            with anyio.fail_after(5):
                for ended in connections:
                    await ended.wait()


@asynccontextmanager
async def link_to(
    *answers: bytes, on_event: Callable[[bytes], None] = lambda body: None
) -> AsyncIterator[tuple[Link, list[int]]]:
    """A link to a server that sends the given responses, one for each frame it receives."""
    zxids: list[int] = []
    async with served(answers) as port:
        link = None
        try:
            link, _ = await Link.open("127.0.0.1", port, b"hello", timeout=2, on_event=on_event, on_zxid=zxids.append)
            yield link, zxids
        finally:
            if link:
                link.abort("the test is over")


@pytest.mark.parametrize("zxid", [-1, 7], ids=["ZooKeeper 3.8", "ZooKeeper 3.9"])
async def test_replies_and_events_come_in_the_order_of_the_bytes(zxid: int) -> None:
    """What is seen counts by replies only: the next event may be of the same transaction."""
    order: list[object] = []
    calls = [Recorded() for _ in range(2)]
    bytes_ = reply(1) + reply(-1, zxid=zxid, body=b"event") + reply(2, zxid=9)
    async with link_to(frame(HELLO), bytes_, on_event=lambda body: order.append((body, calls[1].outcome))) as (
        link,
        seen,
    ):
        for call in calls:
            link.send(b"body", call)
        with anyio.fail_after(5):
            while calls[1].outcome is None:
                await anyio.sleep(0.001)
        assert calls[0].outcome == Reply(1, 5, 0, b"")
        assert order == [(b"event", None)]
        assert seen == [5, 9]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply(2), "a reply to request 2"),
        (reply(1) + reply(1), "a reply to request 1"),
        (frame(b"short"), "no header"),
        (struct.pack("!i", -1), "a frame of -1 bytes"),
        (struct.pack("!i", 1 << 30), "a frame of 1073741824 bytes"),
        (reply(1, code=-4), "no use"),
    ],
)
async def test_an_invalid_reply_closes_the_connection(answer: bytes, reason: str) -> None:
    call = Recorded()
    async with link_to(frame(HELLO), answer) as (link, _):
        link.send(b"body", call)
        with anyio.fail_after(5):
            assert reason in await link.lost
        assert call.outcome is not None
        after = Recorded()
        link.send(b"body", after)
        assert isinstance(after.outcome, str)
        assert reason in after.outcome


@pytest.mark.parametrize("hello", [struct.pack("!i", -7), frame(b"x"), frame(b"")])
async def test_an_invalid_handshake(hello: bytes) -> None:
    with pytest.raises((ConnectionLostError, ProtocolError)) as raised:
        async with link_to(hello):
            pass
    assert not isinstance(raised.value, SecurityError), "it has refused nothing"


@pytest.mark.parametrize("alert", [b"\x15\x03\x03\x00\x02\x02\x50", b"\x15\x03\x01\x00\x02\x02\x28"])
async def test_a_server_that_answers_in_tls_is_named_as_such(alert: bytes) -> None:
    with pytest.raises(SecurityError, match=r"^127\.0\.0\.1:\d+: answers in TLS: \[zookeeper\] secure, connect$"):
        async with link_to(alert):
            pass
    async with link_to(frame(HELLO), alert) as (link, _):
        link.send(b"body", Recorded())
        with anyio.fail_after(5):
            assert f"a frame of {int.from_bytes(alert[:4], 'big')} bytes" in await link.lost


async def test_a_server_that_gives_no_session_is_named() -> None:
    answers = [frame(struct.pack("!iiqi", 0, 0, 0, 16) + bytes(16) + b"\0")]
    async with served(answers) as port:
        zk = ZooKeeperSession(ConnectString.parse(f"127.0.0.1:{port}"), 2.0)
        entering = asyncio.ensure_future(zk.__aenter__())
        await until(lambda: zk.refusals)
        entering.cancel()
        await asyncio.wait([entering])
    assert zk.why_refused == f"127.0.0.1:{port}: no session given"
    assert zk.refusals[0].is_zookeeper


def greeted() -> tuple[Link, asyncio.Task[bytes]]:
    """A link whose server has answered the handshake, and a request on it."""
    link = Link(("server", 1), read_event, lambda zxid: None)
    link.connection_made(Deaf())
    link.data_received(frame(HELLO))
    return link, asyncio.ensure_future(link.ask(WireRequest("/a", b"body", bytes)))


REFUSALS = {code: each.meaning for code, each in ERROR_CODES.items() if each.handling is Handling.REFUSED}


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_refusal_ends_the_connection_with_the_reason_for_all(code: int) -> None:
    """Also if it is the answer to another request; what is asked later is refused, too."""
    for xid in (1, 2):
        link, asking = greeted()
        await anyio.lowlevel.checkpoint()
        other = Recorded()
        link.send(b"body", other)
        link.data_received(reply(xid, code=code))
        with pytest.raises(SecurityError, match=re.escape(REFUSALS[code])):
            await asking
        assert link.refused == REFUSALS[code]
        assert isinstance(other.outcome, str)
        assert REFUSALS[code] in other.outcome
        with pytest.raises(SecurityError):
            await link.ask(WireRequest("/a", b"body", bytes))


async def test_a_certificate_may_be_refused_after_the_handshake_of_tls_and_an_end_is_no_refusal() -> None:
    alert = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]")
    alert.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    for error, expected in ((alert, SecurityError), (None, ConnectionLostError)):
        link, asking = greeted()
        await anyio.lowlevel.checkpoint()
        link.connection_lost(error)
        with pytest.raises(expected) as raised:
            await asking
        assert type(raised.value) is expected
        assert (link.refused is None) is (error is None)
        refused = link.refused
        link.connection_lost(alert)
        assert link.refused == refused, "it has ended already"


async def test_replies_may_come_in_any_pieces() -> None:
    rng = random.Random(3)
    for _ in range(100):
        seen, events = list[int](), list[bytes]()
        link = Link(("server", 1), events.append, seen.append)
        link.connection_made(Deaf())
        contents = [rng.randbytes(rng.randrange(20)) for _ in range(rng.randrange(1, 5))]
        stream = frame(HELLO) + reply(-1, zxid=-1, body=b"event")
        stream += b"".join(reply(xid, 10 + xid, body=body) for xid, body in enumerate(contents, 1))
        cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(6)))
        calls = [Recorded() for _ in contents]
        for call in calls:
            link.send(b"body", call)
        for begin, end in pairwise([0, *cuts, len(stream)]):
            link.data_received(stream[begin:end])
        assert [call.outcome for call in calls] == [
            Reply(xid, 10 + xid, 0, body) for xid, body in enumerate(contents, 1)
        ]
        assert (events, seen) == ([b"event"], [10 + xid for xid in range(1, len(contents) + 1)])
        assert not link.lost.done()
        assert link.unanswered is False


async def test_an_internal_error_while_reading_closes_the_connection_and_fails_every_call() -> None:
    def broken(body: bytes) -> None:
        raise RuntimeError("a bug")

    calls = [Recorded() for _ in range(2)]
    async with link_to(frame(HELLO), reply(1) + reply(-1, zxid=-1), on_event=broken) as (link, _):
        for call in calls:
            link.send(b"body", call)
        with anyio.fail_after(5):
            assert "RuntimeError('a bug')" in await link.lost
        assert isinstance(calls[1].outcome, str)
        assert "a bug" in calls[1].outcome


class Deaf(asyncio.Transport):
    """A transport whose peer is the test."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


NODE = frames.data_body(b"content") + frames.stat_body(Stat(1, 2, 3, 4, 0, 0, 5, 6), 7, 1)
RESULTS = frames.written_body(
    frames.MULTI, [Create("/a", b""), SetData("/b", b"", 1), Check("/c", 2)], [None, Stat(1, 2, 3, 4, 0, 0, 5, 6), None]
)
EVENT = frames.event(EventType.DELETED, "/a")[20:]
ANSWERS: list[tuple[WireRequest[Any], bytes]] = [
    (wire.get("/a", "/a"), NODE),
    (wire.exists("/a", "/a"), NODE[11:]),
    (wire.children("/a", "/a"), frames.names_body(["x", "y"]) + NODE[11:]),
    (wire.create("/a", "/a", b"", ephemeral=True), frames.data_body(b"/a")),
    (wire.multi([Create("/a", b""), SetData("/b", b"", 1), Check("/c", 2)], str), RESULTS),
    (wire.multi([Check("/a", 0), Check("/b", 0)], str), frames.failed_body(2, 1, -103)),
]


def read_event(body: bytes) -> None:
    event(body)


async def test_every_call_ends_whatever_bytes_a_reply_has() -> None:
    """Each call ends, at the latest with the connection, and reading never raises into the event loop."""
    rng = random.Random(7)
    for _ in range(4000):
        link = Link(("server", 1), read_event, lambda zxid: None)
        link.connection_made(Deaf())
        link.data_received(frame(HELLO))
        chosen = rng.choices(ANSWERS, k=2)
        calls = [CallerRequest(request, ConnectionLostError) for request, _ in chosen]
        for call in calls:
            link.send(call.request.body, call)
        replies = [reply(xid, body=mutate(body, rng)) for xid, (_, body) in enumerate(chosen, 1)]
        replies.insert(rng.randrange(3), reply(-1, zxid=-1, body=mutate(EVENT, rng)))
        link.data_received(b"".join(replies))
        link.connection_lost(None)
        assert all(call.outcome.done() for call in calls), replies
        for call in calls:
            call.outcome.exception()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"This ZooKeeper instance is not currently serving requests\n", "it has no quorum, so it rejects clients"),
        (b"srvr is not executed because it is not in the whitelist.\n", "has it a quorum?"),
        (b"Zookeeper version: 3.8.4\n", "it serves others: is it behind, or starting?"),
        (
            b"Zookeeper version: 3.8.4\nREAD-ONLY mode; serving only read-only clients\n",
            "it has no quorum, and is read-only",
        ),
        (b"", "or does this port want TLS? ([zookeeper] secure, connect)"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "or does this port want TLS? ([zookeeper] secure, connect)"),
        (None, "or does this port want TLS? ([zookeeper] secure, connect)"),
    ],
)
async def test_the_server_is_asked_why_it_closes_connections(
    said: bytes | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: it does not answer that question and closes the connection at the handshake."""
    if said is None:
        monkeypatch.setattr(server_choice, "STATUS_LIMIT", 0.1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(100))[:4] == b"srvr":
            writer.write(said or b"")
            if said is None:
                await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        zk = ZooKeeperSession(ConnectString.parse(f"127.0.0.1:{port}"), 2.0)
        entering = asyncio.ensure_future(zk.__aenter__())
        await until(lambda: zk.refusals)
        entering.cancel()
        await asyncio.wait([entering])
    assert zk.why_refused.startswith(f"127.0.0.1:{port}: closed by the server: ")
    assert zk.why_refused.endswith(reason)
    doubted = "not a broker's" in str(unreachable(zk, ZooKeeperSettings(connect="zk1"), 1.0))
    assert doubted == (not said or said[0] == 0x15), "it has shown what it is"


async def test_a_server_that_closes_a_connection_before_the_handshake_has_hung_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with too many connections (maxClientCnxns); the kernel may report that as a connection that failed."""

    async def connect(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Connect call failed ('127.0.0.1', 2181)")

    monkeypatch.setattr(link_module, "connect", connect)
    with pytest.raises(HungUp, match=r"^zk1:2181: closed by the server$"):
        await Link.open("zk1", 2181, b"", timeout=1, on_event=lambda _: None, on_zxid=lambda _: None)


@pytest.mark.parametrize("size", [LARGE - 1, LARGE])
async def test_the_size_of_a_request_at_which_the_server_hangs_up_is_named(size: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(frame(HELLO))
        await reader.readexactly(4)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        link, _ = await Link.open("127.0.0.1", port, b"", timeout=5, on_event=lambda _: None, on_zxid=lambda _: None)
        call = CallerRequest(WireRequest("/", bytes(size), bytes), ConnectionLostError)
        link.send(call.request.body, call)
        with pytest.raises(ConnectionLostError) as lost, anyio.fail_after(5):
            await call.outcome
    finally:
        server.close()
    hint = f"with a request of {size} bytes in flight: is jute.maxbuffer of the server smaller?"
    assert (hint in str(lost.value)) == (size >= LARGE)
