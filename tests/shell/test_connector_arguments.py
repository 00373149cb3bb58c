"""What an application asks for wrongly is refused before anything of it is registered: no server is there."""

from __future__ import annotations

from typing import Any

import pytest

import kzconsumer
from tests.support.members import settings

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("topics", "kind", "words"),
    [
        (["orders"], TypeError, "a mapping to numbers of streams"),
        ("orders", TypeError, "a mapping to numbers of streams"),
        ({"orders": "2"}, TypeError, "a mapping to numbers of streams"),
        ({"orders": True}, TypeError, "a mapping to numbers of streams"),
        ({}, ValueError, "at least one stream"),
        ({"orders": 0}, ValueError, "at least one stream"),
        ({"a b": 1}, ValueError, "'a b' is not a topic name"),
        ({1: 1}, ValueError, "1 is not a topic name"),
    ],
)
async def test_topics(topics: Any, kind: type[Exception], words: str) -> None:
    async with kzconsumer.connect(settings(NOBODY, "g")) as consumer:
        with pytest.raises(kind, match=words):
            await consumer.create_message_streams(topics)


@pytest.mark.parametrize(
    ("topics", "streams", "kind"),
    [
        ("orders.*", 1, TypeError),
        (kzconsumer.Whitelist("orders.*"), 0, ValueError),
        (kzconsumer.Whitelist("orders.*"), True, TypeError),
        (kzconsumer.Whitelist("(?P<name>a)"), 1, ValueError),
    ],
)
async def test_lists(topics: Any, streams: Any, kind: type[Exception]) -> None:
    async with kzconsumer.connect(settings(NOBODY, "g")) as consumer:
        with pytest.raises(kind):
            await consumer.create_message_streams_by_filter(topics, streams)
