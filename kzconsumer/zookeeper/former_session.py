"""A session that has ended for us, but that the ensemble may still keep, with all its ephemeral nodes.

A leader that was suspended reports "expired" before it learns that it is no longer the leader. Deleting the nodes one
by one could hit nodes of another session made in between, since no operation checks an owner. Closing the session by
its id and password removes exactly its nodes, in one transaction, and servers refuse requests of it that still arrive.
"""

from __future__ import annotations

import anyio

from kzconsumer import clock
from kzconsumer.zookeeper import wire
from kzconsumer.zookeeper.access import Access
from kzconsumer.zookeeper.link import Link


class FormerSession:
    """The id and password of a session. The password is in no text of it."""

    def __init__(self, session: int, password: bytes, timeout: float, kept_until: float) -> None:
        """`kept_until`: on `kzconsumer.clock`, the latest end of the lease that sinks and applications were given."""
        self.id = session
        self._password = password
        self._timeout = timeout
        self._kept_until = kept_until

    def __repr__(self) -> str:
        return f"<FormerSession {self.id & 0xFFFFFFFFFFFFFFFF:#x}>"

    async def end(self, host: tuple[str, int], access: Access) -> bool:
        """Close it; False if the server, as one of a quorum, no longer knows it.

        Waits until it could have expired by itself: until then a writer of this process may rely on it. Raises
        ConnectionLostError, ProtocolError, SecurityError, TimeoutError.
        """
        greeting = wire.handshake(self.id, self._password, self._timeout, 0)
        patience = self._timeout / 3
        link, answer = await Link.open(*host, greeting, timeout=patience, on_event=_pass, on_zxid=_pass, access=access)
        try:
            if answer.session_id != self.id:
                return False
            await anyio.sleep(max(0.0, self._kept_until - clock.now()))
            with anyio.fail_after(patience):
                await link.ask(wire.close_session(lambda: None))
            return True
        finally:
            link.abort("done")


def _pass(_: object) -> None:
    """Its events are dropped."""
