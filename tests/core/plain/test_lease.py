"""Waiting for the end of the lease."""

from __future__ import annotations

import anyio

from kzconsumer import clock
from kzconsumer.zookeeper.session import Lease


class Until(Lease):
    """Held until moments that a test gives, one for each look; the last is given again."""

    def __init__(self, *moments: float) -> None:
        super().__init__()
        self._moments = list(moments)

    @property
    def safe_until(self) -> float:
        return self._moments.pop(0) if len(self._moments) > 1 else self._moments[0]


async def test_a_lease_in_doubt_is_lost_at_once() -> None:
    """Doubt makes the moment 0 between one look and the next: that is not a time to wait for."""
    with anyio.fail_after(2):
        await Until(clock.now() + 0.02, 0.0).wait_lost()
        await Until(0.0).wait_lost()


async def test_a_renewed_lease_is_waited_for_again() -> None:
    began = clock.now()
    with anyio.fail_after(2):
        await Until(began + 0.05, began + 0.1).wait_lost()
    assert clock.now() >= began + 0.1
