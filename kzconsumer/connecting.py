"""Connecting to a host by its name: to its addresses in turn, a quarter of a second apart, until one answers.

As RFC 8305 (Happy Eyeballs): an address that drops packets, as over a broken IPv6 route, delays a connection by a
quarter of a second, and does not prevent it. Names are looked up for every connection: an address may change.
Connections, and sockets that listen, belong to one process: children that it forks do not have them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import anyio

from kzconsumer.resolver import addresses

STAGGER: Final = 0.25
"""Seconds until the next address is tried, too; at once if the last attempt has failed."""
NO_ANSWER: Final = "no answer"
NO_ADDRESS: Final = "no answer from the resolver (DNS) for this name"

# By their protocols, which a transport gives up when it is closed; not all transports can be referred to weakly.
_connected = WeakKeyDictionary[asyncio.BaseProtocol, asyncio.BaseTransport]()
_listening = WeakSet[socket.socket]()


def _leave_to_the_parent() -> None:
    """A forked child has its parent's sockets. What it would write or read there is the parent's: a `CloseSession`, as
    its event loop ends, would close the parent's session. So in the child they lead nowhere. A child that outlives its
    parent would also keep the port at which the parent listened.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    connected = [transport.get_extra_info("socket") for transport in list(_connected.values())]
    for each in (*connected, *_listening):
        if each is not None and (descriptor := each.fileno()) >= 0:
            os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_leave_to_the_parent)


def listen(listening: socket.socket) -> None:
    """Listen at its address, in this process alone. Raises OSError."""
    listening.listen()
    _listening.add(listening)


_Address: TypeAlias = tuple[Any, ...]


class SocketTarget(NamedTuple):
    """One address of a host."""

    family: int
    address: _Address
    """As for `socket.connect`."""


class AddressOutcomes:
    """What became of each address, for the error if none answers."""

    def __init__(self) -> None:
        self._outcomes: dict[str, str] = {}
        self.looking_up = False
        """The resolver has not answered yet."""

    def set(self, address: str, outcome: str) -> None:
        self._outcomes[address] = outcome

    def __str__(self) -> str:
        """Empty if there is one address."""
        if self.looking_up:
            return NO_ADDRESS
        if len(self._outcomes) < 2:
            return ""
        reasons = dict.fromkeys(self._outcomes.values())
        by_reason = (
            (reason, [address for address, outcome in self._outcomes.items() if outcome == reason])
            for reason in reasons
        )
        return "; ".join(f"{reason} (at {', '.join(addresses)})" for reason, addresses in by_reason)


async def connect(
    protocol: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    attempts: AddressOutcomes | None = None,
) -> asyncio.BaseTransport:
    """The transport of a protocol that `protocol` makes once the host has answered, and TLS is established.

    Raises OSError as the event loop does, with the reason of each address if there are several; ssl.SSLError. A caller
    that gives up finds those of `attempts`.
    """
    loop = asyncio.get_running_loop()
    name = server_name(host) if tls is not None else None
    attempts = attempts if attempts is not None else AddressOutcomes()
    attempts.looking_up = True
    targets = await targets_of(host, port)
    attempts.looking_up = False
    if len(targets) == 1:
        at = targets[0].address[0]
        transport, made = await loop.create_connection(protocol, at, port, ssl=tls, server_hostname=name)
    else:
        connected = await _connected_to_one(targets, attempts)
        transport, made = await loop.create_connection(protocol, sock=connected, ssl=tls, server_hostname=name)
    _connected[made] = transport
    return transport


def server_name(host: str) -> str:
    """The name that a server's certificate or principal is for: without the dot that ends an absolute one."""
    return host.removesuffix(".")


async def targets_of(host: str, port: int) -> list[SocketTarget]:
    """Its addresses, those of IPv6 and IPv4 in turn, beginning with what the system prefers."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = await addresses(host, port)
    else:
        return [SocketTarget(0, (host, port))]
    targets = list(dict.fromkeys(SocketTarget(family, address) for family, _, _, _, address in found))
    if not targets:
        raise OSError(f"{host} has no address")
    preferred = [target for target in targets if target.family == targets[0].family]
    others = [target for target in targets if target.family != targets[0].family]
    return [target for target in chain.from_iterable(zip_longest(preferred, others)) if target is not None]


async def _connected_to_one(targets: Sequence[SocketTarget], attempts: AddressOutcomes) -> socket.socket:
    """A socket that is connected to one of them. Raises OSError."""

    async def attempt(target: SocketTarget) -> socket.socket | None:
        address = str(target.address[0])
        attempts.set(address, NO_ANSWER)
        try:
            sock = socket.socket(target.family, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, target.address)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            attempts.set(address, "connection refused" if refused else error.strerror or str(error))
            return None
        return sock

    connected = await first_success(targets, attempt, STAGGER, discard=socket.socket.close)
    if connected is None:
        raise OSError(str(attempts))
    return connected


A = TypeVar("A")
R = TypeVar("R")


async def first_success(
    targets: Iterable[A],
    attempt: Callable[[A], Awaitable[R | None]],
    pause: float,
    *,
    discard: Callable[[R], object] = lambda _: None,
) -> R | None:
    """The first result that is not None, the targets being tried in turn; None if there is none.

    The next attempt begins after `pause` seconds, or at once if the last one has failed. Those before it go on.
    `discard` gets each result that is not returned: two may come at one moment, or the caller is cancelled.
    """
    results: list[R] = []

    async def begin(target: A, ended: anyio.Event) -> None:
        result = await attempt(target)
        if result is not None:
            results.append(result)
            tasks.cancel_scope.cancel()
        ended.set()

    try:
        async with anyio.create_task_group() as tasks:
            for target in targets:
                ended = anyio.Event()
                tasks.start_soon(begin, target, ended)
                with anyio.move_on_after(pause):
                    await ended.wait()
    except BaseException:
        for each in results:
            discard(each)
        raise
    for each in results[1:]:
        discard(each)
    return results[0] if results else None
