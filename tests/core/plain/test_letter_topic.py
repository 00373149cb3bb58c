"""Dead letters in a topic: a letter without an acknowledgement does not count as written."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from kzconsumer import rejected
from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.errors import DeadLetterError
from kzconsumer.offsets.progress import Message
from kzconsumer.rejected import LetterTopic
from kzconsumer.settings.sections import BrokersSettings

LETTER = DeadLetter(Message("orders", 0, 7, b"k", b"v"), "rejected", "no", "g")
TIMEOUT = 30.0


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a broker that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@asynccontextmanager
async def topic_at(bootstrap: str) -> AsyncIterator[LetterTopic]:
    async def brokers() -> str:
        return bootstrap

    topic = LetterTopic("letters", BrokersSettings(), "test", TIMEOUT, brokers)
    try:
        yield topic
    finally:
        topic.close()


async def test_a_letter_that_is_not_acknowledged_in_time_is_not_written(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer has not given up by then and has reported no failure."""
    monkeypatch.setattr(rejected, "LATE", -TIMEOUT)
    async with topic_at(silent) as topic:
        with pytest.raises(DeadLetterError, match=r"^topic letters: no answer$"):
            await topic.write([LETTER])
