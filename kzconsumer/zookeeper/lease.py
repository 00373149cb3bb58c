"""The lease: whether this process may still act as an owner. It outlives sessions and refers to the current one.

It makes deliveries by an expired member rare; correctness rests on fenced commits.
"""

from __future__ import annotations

import anyio

from kzconsumer import clock
from kzconsumer.errors import SessionExpiredError
from kzconsumer.zookeeper.session import ZooKeeperSession


class Lease:
    """Records may be delivered and published while `held`."""

    def __init__(self) -> None:
        self._session: ZooKeeperSession | None = None
        self._changed = anyio.Event()

    @property
    def safe_until(self) -> float:
        """Until then (`kzconsumer.clock`) no server can have expired the session; 0 without one."""
        return self._session.safe_until if self._session is not None else 0.0

    @property
    def held(self) -> bool:
        return self._session is not None and self._session.trusted()

    def set(self, session: ZooKeeperSession | None) -> None:
        self._session = session
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self) -> None:
        """Wait until the lease is held, across sessions."""
        while not self.held:
            changed = self._changed
            try:
                if self._session is not None:
                    await self._session.wait_trusted()
                    continue
            except SessionExpiredError:
                pass  # the connector sets the next session, or none
            await changed.wait()

    async def wait_lost(self) -> None:
        """Wait until the lease is not held."""
        while True:
            left = self.safe_until - clock.now()  # read once: doubt makes it 0 at any moment
            if left <= 0:
                return
            await anyio.sleep(left)
