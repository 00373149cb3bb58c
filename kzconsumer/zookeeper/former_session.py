"""A session that is over for us, and that the ensemble may still keep, with all its ephemeral nodes.

A leader that has stood still says "expired" on its own account, before it learns that it leads no longer. Deleting the
nodes one by one could meet another session's, made in between: no operation checks an owner. Closing the session by its
id and password removes its own nodes and no others, in one transaction, and servers refuse whatever of it is still on
its way. The next session of the same connector does so first of all.
"""

from __future__ import annotations

import anyio

from kzconsumer import clock
from kzconsumer.errors import ConnectionLost
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.access import Access
from kzconsumer.zookeeper.link import Link
from kzconsumer.zookeeper.session_calls import Asked


class FormerSession:
    """What proves to a server that it was ours. Nothing that is printed of it holds the password."""

    def __init__(self, session: int, password: bytes, timeout: float, kept_until: float) -> None:
        """`kept_until`: on `kzconsumer.clock`, what was promised to sinks and applications for as long as it lasts."""
        self.id = session
        self._password = password
        self._timeout = timeout
        self._kept_until = kept_until

    def __repr__(self) -> str:
        return f"<FormerSession {self.id & 0xFFFFFFFFFFFFFFFF:#x}>"

    async def end(self, host: tuple[str, int], access: Access) -> bool:
        """Close it; False when that server, which is one of a quorum, keeps it no more.

        Not before the time at which it could have expired by itself: until then a writer of ours may rely on it.
        Raises ConnectionLost, ProtocolError, SecurityError, TimeoutError: it is left to expire then.
        """
        greeting = wire.handshake(self.id, self._password, self._timeout, 0)
        patience = self._timeout / 3
        link, answer = await Link.open(*host, greeting, timeout=patience, on_event=_pass, on_zxid=_pass, access=access)
        try:
            if answer.session_id != self.id:
                return False
            await anyio.sleep(max(0.0, self._kept_until - clock.now()))
            closing = Asked(wire.close_session(lambda: None), ConnectionLost)
            with anyio.fail_after(patience):
                link.send(closing.request.body, closing)
                await closing.outcome
            return True
        finally:
            link.abort("done")


def _pass(_: object) -> None:
    """Nobody waits for its events any more."""
