"""Connecting by name: dead addresses, both event loops, TLS, absolute names, names whose address changes."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import anyio
import pytest
import trustme

from kzconsumer import connecting
from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.transport import Security
from kzconsumer.clock import now
from kzconsumer.connecting import STAGGER, connect, first_success, server_name
from kzconsumer.errors import ConnectionLostError, SecurityError
from kzconsumer.model import Broker
from kzconsumer.resolver import addresses
from kzconsumer.zookeeper.credentials import Access
from kzconsumer.zookeeper.link import Link

AUTHORITY = trustme.CA()
LIVE, DEAD, CLOSED = "127.0.0.1", "127.0.0.2", "127.0.0.3"
"""One address answers, one drops packets, one refuses."""


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The daemon runs on uvloop where that is installed."""

    def run(uvloop: bool, **arguments: object) -> None:
        anyio.run(partial(test, **arguments), backend_options={"use_uvloop": uvloop})

    parameters = inspect.signature(test).parameters.values()
    mine = inspect.Parameter("uvloop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*parameters, mine])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])(run)


class Server:
    """Accepts connections at LIVE, and none at DEAD, whose queue of them is full: the port is the same."""

    def __init__(self) -> None:
        self.exits = ExitStack()
        self.live = self.exits.enter_context(socket.create_server((LIVE, 0)))
        self.port: int = self.live.getsockname()[1]
        dead = self.exits.enter_context(socket.socket())
        dead.bind((DEAD, self.port))
        dead.listen(0)
        for _ in range(4):
            waiting = self.exits.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((DEAD, self.port))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with made.exits:
        yield made


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Have names resolve to these addresses, one list after the other; returns the names asked for."""

    def name(*answers: Sequence[str]) -> list[str]:
        asked: list[str] = []
        left = list(answers)

        async def targets(host: str, port: int) -> list[Any]:
            asked.append(host)
            found = left.pop(0) if len(left) > 1 else left[0]
            return [connecting.SocketTarget(socket.AF_INET, (address, port)) for address in found]

        monkeypatch.setattr(connecting, "targets_of", targets)
        return asked

    return name


class Resolver:
    """Resolves each name to LIVE; silent.test only once `answers` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()

    def resolve(self, host: str, port: int, *_: int, **__: int) -> list[Any]:
        self.asked.append(host)
        if host == "silent.test":
            self.answers.wait(20)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (LIVE, port))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    """In place of the system's."""
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made.resolve)
    yield made
    made.answers.set()


class Nothing(asyncio.Protocol):
    """Takes no notice of what comes."""


async def reached(host: str, port: int, tls: ssl.SSLContext | None = None) -> str:
    transport = await connect(Nothing, host, port, tls=tls)
    address = transport.get_extra_info("peername")[0]
    transport.close()
    return str(address)


@pytest.mark.parametrize("first", [DEAD, CLOSED])
@on_both_loops
async def test_an_address_that_does_not_answer_costs_a_quarter_of_a_second(
    first: str, server: Server, named: Callable[..., list[str]]
) -> None:
    named([first, LIVE])
    began = now()
    with anyio.fail_after(5):
        assert await reached("kz.test", server.port) == LIVE
    assert (now() - began >= STAGGER * 0.9) == (first == DEAD)


@on_both_loops
async def test_zookeeper_and_brokers_are_reached_so(server: Server, named: Callable[..., list[str]]) -> None:
    """And the reason of each address is in the error if none answers."""
    named([DEAD, CLOSED])
    both = rf"connection refused \(at {CLOSED}\)"
    with pytest.raises(ConnectionLostError, match=rf"not connected within 0.6 s: no answer \(at {DEAD}\); {both}"):
        await BrokerConnection.open(Broker(1, "kz.test", server.port), client_id="t", timeout=0.6)
    with pytest.raises(ConnectionLostError, match=rf"no answer within 0.6 s: no answer \(at {DEAD}\); {both}"):
        await Link.open("kz.test", server.port, b"", timeout=0.6, on_event=lambda _: None, on_zxid=lambda _: None)
    named([CLOSED, "127.0.0.4"])
    with pytest.raises(ConnectionLostError, match=rf"connection refused \(at {CLOSED}, 127.0.0.4\)"):
        await Link.open("kz.test", server.port, b"", timeout=0.6, on_event=lambda _: None, on_zxid=lambda _: None)
    named([DEAD, LIVE])
    with pytest.raises(ConnectionLostError, match=r"no answer within 0.6 s$"):  # from what has accepted the connection
        await Link.open("kz.test", server.port, b"", timeout=0.6, on_event=lambda _: None, on_zxid=lambda _: None)


@pytest.mark.parametrize("addresses", [[LIVE], [DEAD, LIVE]])
@on_both_loops
async def test_an_absolute_name_is_checked_as_the_certificate_has_it(
    addresses: list[str], named: Callable[..., list[str]]
) -> None:
    """OpenSSL compares names with the dot, and certificates have none."""
    asked = named(addresses)
    serving, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    AUTHORITY.issue_cert("kz.test").configure_cert(serving)
    AUTHORITY.configure_trust(client)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), LIVE, 0, ssl=serving)
    try:
        port = server.sockets[0].getsockname()[1]
        with socket.socket() as dead:
            dead.bind((DEAD, port))
            with anyio.fail_after(5):
                assert await reached("kz.test.", port, client) == LIVE
            with pytest.raises(ssl.SSLCertVerificationError):
                await reached("other.test.", port, client)
    finally:
        server.close()
    assert asked == ["kz.test.", "other.test."]  # the search list of the resolver is not used


@pytest.mark.parametrize("secured", [True, False])
@pytest.mark.parametrize("kind", ["zookeeper", "broker"])
async def test_nothing_is_sent_in_clear_where_tls_is_configured(kind: str, secured: bool) -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(65536))
        writer.close()

    async def ask(port: int) -> None:
        tls = ssl.create_default_context() if secured else None
        if kind == "broker":
            await BrokerConnection.open(Broker(1, LIVE, port), client_id="t", timeout=5, security=Security(tls))
        else:
            read: dict[str, Any] = {"on_event": lambda _: None, "on_zxid": lambda _: None}
            await Link.open(LIVE, port, b"hello", timeout=5, access=Access(tls), **read)

    server = await asyncio.start_server(serve, LIVE, 0)
    try:
        with pytest.raises((ConnectionLostError, SecurityError)):
            await ask(server.sockets[0].getsockname()[1])
    finally:
        server.close()
    assert {each[:2] == b"\x16\x03" for each in received} == {secured}, "the record of a ClientHello"


@on_both_loops
async def test_a_name_is_looked_up_for_each_connection(server: Server, named: Callable[..., list[str]]) -> None:
    named([CLOSED], [LIVE])
    with pytest.raises(ConnectionRefusedError):
        await reached("kz.test", server.port)
    assert await reached("kz.test", server.port) == LIVE


@on_both_loops
async def test_a_name_that_the_resolver_does_not_answer_for_delays_no_other(server: Server, resolver: Resolver) -> None:
    """And is asked for once, however often a connection is tried: each try would occupy a thread."""
    for _ in range(10):
        with anyio.move_on_after(0.02) as tried:
            await reached("silent.test", server.port)
        assert tried.cancelled_caught
    with anyio.fail_after(2):
        assert await reached("kz.test", server.port) == LIVE
    assert resolver.asked == ["silent.test", "kz.test"]
    resolver.answers.set()
    with anyio.fail_after(2):
        assert await reached("silent.test", server.port) == LIVE


@on_both_loops
async def test_an_answer_of_the_resolver_that_comes_late_is_for_the_next_attempt(
    server: Server, resolver: Resolver
) -> None:
    """An attempt may have less time than a resolver whose first server is down. Then the name is looked up again."""
    late = "no answer from the resolver \\(DNS\\) for this name"
    with pytest.raises(ConnectionLostError, match=f"no answer within 0.0 s: {late}"):
        await Link.open("silent.test", server.port, b"", timeout=0.02, on_event=print, on_zxid=print)
    with pytest.raises(ConnectionLostError, match=f"not connected within 0.02 s: {late}"):
        await BrokerConnection.open(Broker(1, "silent.test", server.port), client_id="t", timeout=0.02)
    resolver.answers.set()
    with anyio.fail_after(5):
        while "look-up of silent.test" in [thread.name for thread in threading.enumerate()]:
            await anyio.sleep(0.001)
        await anyio.sleep(0.01)
        for looked_up in (1, 2):
            assert await reached("silent.test", server.port) == LIVE
            assert resolver.asked == looked_up * ["silent.test"]


async def test_without_a_thread_a_name_is_an_error_of_this_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread to look up localhost: can't start new thread"):
            await addresses("localhost", server.port)
    with anyio.fail_after(5):
        assert await addresses("localhost", server.port)


@on_both_loops
async def test_a_name_that_does_not_exist_is_an_error_of_each_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: int) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for _ in range(2):
        with pytest.raises(socket.gaierror, match="Name or service not known"):
            await reached("kz.test", 1)


async def test_a_forked_child_writes_nothing_to_its_parents_connections(
    server: Server, named: Callable[..., list[str]]
) -> None:
    named([LIVE])
    transport = await connect(Nothing, "kz.test", server.port)
    accepted, _ = server.live.accept()
    if (child := os.fork()) == 0:
        try:
            os.write(transport.get_extra_info("socket").fileno(), b"CloseSession")
        finally:
            os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    assert isinstance(transport, asyncio.Transport)
    transport.write(b"mine")
    accepted.settimeout(5)
    with accepted:
        assert await asyncio.to_thread(accepted.recv, 100) == b"mine"
    transport.abort()


@on_both_loops
async def test_who_gives_up_leaves_no_connection(server: Server, named: Callable[..., list[str]]) -> None:
    named([DEAD, DEAD])
    with anyio.move_on_after(0.4) as gave_up:
        await reached("kz.test", server.port)
    assert gave_up.cancelled_caught


async def test_what_comes_beside_the_first_success_is_discarded() -> None:
    both, discarded = anyio.Event(), list[int]()

    async def attempt(target: int) -> int:
        if target == 2:
            both.set()
        with anyio.CancelScope(shield=True):
            await both.wait()
        return target

    found = await first_success([1, 2], attempt, 0.001, discard=discarded.append)
    assert sorted([found or 0, *discarded]) == [1, 2]


async def test_a_success_that_comes_as_the_caller_gives_up_is_discarded() -> None:
    discarded: list[int] = []

    async def attempt(target: int) -> int:
        gave_up.cancel()
        return target

    with anyio.CancelScope() as gave_up:
        await first_success([1], attempt, 5, discard=discarded.append)
    assert discarded == [1]


async def test_families_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    six, four = socket.AF_INET6, socket.AF_INET

    async def resolve(host: str, port: int) -> list[Any]:
        return [(family, 1, 6, "", (at, port)) for family, at in ((six, "a"), (six, "b"), (four, "c"), (six, "a"))]

    monkeypatch.setattr(connecting, "addresses", resolve)
    assert [target.address[0] for target in await connecting.targets_of("kz.test", 1)] == ["a", "c", "b"]


def test_the_name_of_a_server_has_no_dot_at_its_end() -> None:
    assert [server_name(host) for host in ("kz.test.", "kz.test", "::1", "1.2.3.4")] == [
        "kz.test",
        "kz.test",
        "::1",
        "1.2.3.4",
    ]
