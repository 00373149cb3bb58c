"""Who we are, told on a new connection before anything else of the session is asked.

Owns no state; `Link.open` calls it. A refusal is a SecurityError: another attempt changes nothing until somebody
changes a setting, here or there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kzconsumer.errors import ConnectionLost, SecurityError
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.access import Access, User

if TYPE_CHECKING:
    from kzconsumer.zookeeper.link import Link


class _Answer:
    """The reply to one request of ours."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()

    def answered(self, reply: wire.Reply) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def lost(self, reason: str) -> None:
        if not self.reply.done():
            self.reply.set_exception(ConnectionLost(reason))


async def authenticate(link: Link, access: Access) -> None:
    """Raises SecurityError when either side does not accept the other, ConnectionLost, ProtocolError."""
    if access.sasl is not None:
        await _sasl(link, access.sasl)
    if access.digest is not None:
        # A wrong password is no refusal in this scheme: we are somebody else then, to whom nodes may be closed.
        await _ask(link, wire.add_auth("digest", access.digest.digest()), wire.AUTH_XID)


async def _sasl(link: Link, user: User) -> None:
    exchange = user.exchange()
    token = next(exchange)
    try:
        while True:
            request = wire.sasl(token)
            answer = wire.result(request, await _ask(link, request))
            try:
                token = exchange.send(answer)
            except StopIteration:
                return
    except SecurityError as error:
        raise SecurityError(f"{link.where}: [zookeeper.sasl] DIGEST-MD5 as {user.name}: {error}") from None
    except ConnectionLost:
        if link.refused is not None:
            told = "the server does not accept it: wrong name or password?"
            raise SecurityError(f"{link.where}: [zookeeper.sasl] DIGEST-MD5 as {user.name}: {told}") from None
        raise


async def _ask(link: Link, request: wire.Request[bytes], xid: int | None = None) -> wire.Reply:
    call = _Answer()
    link.send(request.body, call, xid)
    return await call.reply
