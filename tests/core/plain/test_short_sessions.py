"""The limit of a short session, and sessions that follow each other."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Self
from unittest import mock

import anyio
import pytest

from kzconsumer import runs
from kzconsumer.errors import ConnectionLostError, ZooKeeperUnreachableError
from kzconsumer.registry import cluster
from kzconsumer.settings.settings import Settings
from tests.support.simulated.virtual_time import in_virtual_time


class AnsweredTooLate:
    """A session whose answer and the end of the limit are found in one turn of a loop that was held up."""

    unanswered = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def sync(self) -> None:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        loop.call_later(0.01, answer.set_result, None)
        loop.call_soon(time.sleep, 0.2)
        await answer


async def test_a_block_that_is_cancelled_by_the_limit_does_not_end_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LIMIT", 0.05)
    monkeypatch.setattr(cluster, "open_session", lambda *_, **__: AnsweredTooLate())
    settings = Settings.from_dict({"zookeeper": {"connect": "zk:2181"}, "group": {"id": "g"}})
    with pytest.raises(ZooKeeperUnreachableError, match="not to all requests within"):
        async with cluster.short_session(settings.zookeeper, more=15.0):
            await anyio.sleep(0.01)


class Broken:
    """A session whose first requests are lost with their connections."""

    begun = 0

    async def __aenter__(self) -> Self:
        Broken.begun += 1
        raise ConnectionLostError("zk:2181: reset by peer")

    async def __aexit__(self, *error: object) -> None:
        pass


@in_virtual_time
async def test_a_daemon_begins_no_more_than_a_session_in_a_second() -> None:
    """Each is a transaction of all servers, also where the network breaks every connection."""
    settings = Settings.from_dict({"zookeeper": {"connect": "zk:2181"}, "group": {"id": "g"}})
    for module, begins in (
        (cluster, partial(cluster.cluster_identity, settings)),
        (runs, partial(runs.is_over, settings, lambda run: True, replayable=False)),
    ):
        Broken.begun = 0
        with mock.patch.object(module, "open_session", return_value=Broken()), anyio.move_on_after(10):
            await begins()
        assert 5 < Broken.begun <= 11
