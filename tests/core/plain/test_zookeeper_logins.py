"""Servers that want to know who connects: each connection proves it before anything else is sent, and what follows if
they do not accept it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import ConfigError, ConnectionLostError, ProtocolError
from kzconsumer.security import tokens
from kzconsumer.zookeeper.credentials import Access
from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer.zookeeper.server_choice import FormerSession
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.session_life import FORMER_ATTEMPTS, SessionState
from tests.support.simulated.clients import Clients
from tests.support.simulated.ensemble import Server
from tests.support.simulated.logins import Login, proving
from tests.support.simulated.network import CHROOT
from tests.support.simulated.zookeeper_frames import AUTH, SASL

T = 6.0
TOKENS = [(b"", b"who?"), (b"alice", b"and?"), (b"\0\xff", b"")]
USER = b"alice:secret"


class AtOnce:
    """A thread that ends before `start` returns."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: object) -> None:
        self.start = lambda: target(*args)


@pytest.fixture(autouse=True)
def without_threads() -> Iterator[None]:
    async def run(call: Callable[..., object], *arguments: object, **_: object) -> object:
        await anyio.lowlevel.checkpoint()
        return call(*arguments)

    with mock.patch.object(tokens, "Thread", AtOnce), mock.patch.object(anyio.to_thread, "run_sync", run):
        yield


class Guarded(Clients):
    """`login` says what a server wants, `access` what the client has."""

    def __init__(self, login: Callable[[Server], Login], access: Callable[[], Access] | None) -> None:
        super().__init__()
        self.logins: list[Login] = []
        self.access = access
        self.login = login
        self.ensemble.login = self._begun

    def _begun(self, server: Server) -> Login:
        self.logins.append(self.login(server))
        return self.logins[-1]

    def session(self) -> ZooKeeperSession:
        return ZooKeeperSession(ConnectString.parse(f"zk0:2181,zk1:2181{CHROOT}"), T, access=self.access)

    async def cut_off(self, session: ZooKeeperSession) -> None:
        """Breaks its connection; what is asked from then on waits for another."""
        self.network.cut(self.process, arrives=False)
        while session.state is SessionState.CONNECTED:
            await anyio.sleep(0.001)


@pytest.mark.parametrize("user", [None, USER], ids=["sasl", "both"])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("returned", [False, True])
def test_each_connection_proves_who_it_is_before_anything_else(user: bytes | None, count: int, returned: bool) -> None:
    used, hosts = TOKENS[:count], list[str]()
    sasl = proving(used, hosts.append, last_is_returned=returned) if used else None
    clients = Guarded(lambda server: Login(used, user), lambda: Access(sasl=sasl, digest=user))
    connections = 3

    async def script(session: ZooKeeperSession) -> None:
        _, watch = await session.watch_children("/")
        for number in range(connections - 1):
            await clients.cut_off(session)
            await session.create(f"/{number}")
        assert watch.fired, "it was set again"

    clients.play(script)
    asked = [each.asked for each in clients.logins]
    assert asked == [[SASL] * count + [AUTH] * (user is not None)] * connections
    assert all(each.passed for each in clients.logins)
    assert set(hosts) <= {"zk0", "zk1"}
    assert len(hosts) == (connections if used else 0)


WRONG_PASSWORD = "[zookeeper.sasl] TOY as alice: the server does not accept it: wrong name or password?"


def with_token(token: bytes) -> Access:
    return Access(sasl=proving([(token, b"")], str, last_is_returned=False))


@pytest.mark.parametrize(
    ("login", "access", "why"),
    [
        (lambda: Login([(b"right", b"")]), lambda: with_token(b"wrong"), WRONG_PASSWORD),
        (lambda: Login([(b"right", b"")]), None, "the server requires SASL: [zookeeper.sasl]"),
        (
            lambda: Login(user=USER),
            lambda: Access(digest=b"bob:secret"),
            "the server does not accept our authentication (AUTH_FAILED)",
        ),
    ],
    ids=["password", "nobody", "digest"],
)
def test_a_session_that_every_server_refuses_is_over(
    login: Callable[[], Login], access: Callable[[], Access] | None, why: str
) -> None:
    clients = Guarded(lambda server: login(), access)
    began = clients.world.now

    async def script(session: ZooKeeperSession) -> None:
        raise AssertionError("it was let in")

    with pytest.raises(ConfigError) as raised:
        clients.play(script)
    assert {fault.removeprefix("zk0:2181: ").removeprefix("zk1:2181: ") for fault in raised.value.faults} == {why}
    assert clients.world.now - began < T, "it is not tried again and again"


def test_a_server_that_lets_us_in_is_found_behind_others() -> None:
    """In whatever order they are asked."""
    for refusing in (0, 1):
        clients = Guarded(
            lambda server: Login([(b"wrong" if server is clients.ensemble.servers[refusing] else b"right", b"")]),  # noqa: B023
            lambda: with_token(b"right"),
        )

        async def script(session: ZooKeeperSession) -> None:
            for _ in range(4):
                await session.sync()
                await clients.cut_off(session)  # noqa: B023

        clients.play(script)
        assert not all(each.passed for each in clients.logins), "the other one was asked, too"


@pytest.mark.parametrize("fault", ["another password", "no file"])
def test_a_session_that_was_let_in_waits_for_its_password_to_be_right_again(
    fault: str,
) -> None:
    """Passwords are changed under running members, on the servers first or in the files first."""
    known = [b"right"]

    def read() -> Access:
        if not known:
            raise ConfigError(["password_file: cannot be read"])
        return with_token(known[0])

    clients = Guarded(lambda server: Login([(b"right", b"")]), read)

    async def script(session: ZooKeeperSession) -> None:
        await session.create("/mine", ephemeral=True)
        await anyio.sleep(T / 2)
        known[:] = [b"wrong"] if fault == "another password" else []
        await clients.cut_off(session)
        await anyio.sleep(T / 2)
        assert session.state is SessionState.SUSPENDED
        why = WRONG_PASSWORD if known else "password_file: cannot be read"
        assert session.refusals
        assert all(each.reason.endswith(why) for each in session.refusals)
        known[:] = [b"right"]
        assert await session.exists("/mine") is not None
        assert session.refusals == ()

    with capture_logs() as logs:
        clients.play(script)
    (line,) = (each for each in logs if each["event"] == "no secure connection to ZooKeeper")
    assert line["hosts"] == f"zk0:2181,zk1:2181{CHROOT}"


@pytest.mark.parametrize("failures", range(FORMER_ATTEMPTS + 1))
def test_a_former_session_is_closed_in_a_few_attempts_or_left_to_expire(failures: int) -> None:
    """With the credentials of this moment."""
    clients = Guarded(lambda server: Login([(b"right", b"")]), lambda: with_token(b"right"))
    left, end = [failures], FormerSession.end

    async def closed(former: FormerSession, host: tuple[str, int], access: Access) -> bool:
        if left[0]:
            left[0] -= 1
            raise (ConnectionLostError, ProtocolError, TimeoutError)[left[0]]("no")
        return await end(former, host, access)

    async def script(session: ZooKeeperSession) -> None:
        other = clients.session()
        await other.__aenter__()
        former = other.former
        assert former is not None
        other.end(SessionState.EXPIRED, "as a server said")
        await session.end_former(former)
        assert clients.ensemble.sessions[former.id].alive is (failures == FORMER_ATTEMPTS)

    with mock.patch.object(FormerSession, "end", closed), capture_logs() as logs:
        clients.play(script)
    assert [each["event"] for each in logs if "former" in str(each["event"])] == [
        "former session left to expire" if failures == FORMER_ATTEMPTS else "former session closed"
    ]


def test_a_former_session_is_left_alone_if_it_is_not_known_who_we_are() -> None:
    known = [True]

    def read() -> Access:
        if not known:
            raise ConfigError(["password_file: cannot be read"])
        return with_token(b"right")

    clients = Guarded(lambda server: Login([(b"right", b"")]), read)

    async def script(session: ZooKeeperSession) -> None:
        former = session.former
        assert former is not None
        known.clear()
        before = len(clients.logins)
        await session.end_former(former)
        known.append(True)
        assert len(clients.logins) == before
        await session.sync()

    with capture_logs() as logs:
        clients.play(script)
    (line,) = (each for each in logs if each["event"] == "former session left to expire")
    assert line["reason"] == "keys or passwords cannot be read"
