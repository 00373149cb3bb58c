"""Authentication on a new connection, before any other request of the session: SASL, then the scheme `digest`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from kzconsumer.errors import SecurityError
from kzconsumer.zookeeper import wire, wire_frames
from kzconsumer.zookeeper.access import Access, User

Exchange: TypeAlias = Callable[[wire_frames.Request[bytes], int | None], Awaitable[wire_frames.Reply]]
"""Sends a request, under a given xid or the next, and returns the reply.

Raises SecurityError if the server ends the connection because it does not accept the client, else ConnectionLost.
"""


async def authenticate(exchange: Exchange, access: Access) -> None:
    """Raises SecurityError when either side does not accept the other, ConnectionLost, ProtocolError."""
    if access.sasl is not None:
        await _sasl(exchange, access.sasl)
    if access.digest is not None:
        # A wrong password is not refused in this scheme: it makes us another user, to whom nodes may be closed.
        await exchange(wire.add_auth("digest", access.digest.digest()), wire_frames.AUTH_XID)


async def _sasl(exchange: Exchange, user: User) -> None:
    tokens = user.exchange()
    token = next(tokens)
    where = f"[zookeeper.sasl] DIGEST-MD5 as {user.name}"
    while True:
        request = wire.sasl(token)
        try:
            reply = await exchange(request, None)
        except SecurityError:
            raise SecurityError(f"{where}: the server does not accept it: wrong name or password?") from None
        answer = wire_frames.result(request, reply)
        try:
            token = tokens.send(answer)
        except StopIteration:
            return
        except SecurityError as error:
            raise SecurityError(f"{where}: {error}") from None
