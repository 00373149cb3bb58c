"""The limit of a short session."""

from __future__ import annotations

import asyncio
import time
from typing import Self

import anyio
import pytest

from kzconsumer.errors import ZooKeeperUnreachableError
from kzconsumer.registry import cluster
from kzconsumer.settings.settings import Settings


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
