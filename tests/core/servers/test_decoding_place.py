"""Where records are decoded: quick ones in the event loop, expanding ones in a thread."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kzconsumer.fetcher import decode_and_queue, fetch_rules
from kzconsumer.records import decode
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import member, take_batches
from tests.support.producing import Sent, produce

ClusterOf = Callable[[str], Cluster]
PARTITIONS = 3
RECORDS = 6_000


@pytest.mark.parametrize(
    ("codec", "in_thread"),
    [("none", False), ("zstd", True)],
    ids=["plain", "compressed"],
)
async def test_only_quick_responses_are_decoded_in_the_event_loop(
    cluster_of: ClusterOf, unique: str, monkeypatch: pytest.MonkeyPatch, codec: str, in_thread: bool
) -> None:
    monkeypatch.setattr(decode_and_queue, "MOST_AT_ONCE", 256 * 1024)  # iterations of the loop between partitions, too
    decoded: list[tuple[int, bool]] = []

    def noted(records: memoryview, **more: Any) -> decode.Decoded:
        result = decode.decode(records, **more)
        if not result.no_room:  # a response without room is refused before anything of it is decompressed
            decoded.append((len(records), threading.current_thread() is not threading.main_thread()))
        return result

    monkeypatch.setattr(fetch_rules, "decode", noted)
    cluster = cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, PARTITIONS)
    noise = random.Random(1)
    sent = [Sent(number % PARTITIONS, None, noise.randbytes(300) + b"." * 700) for number in range(RECORDS)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent, codec, batch_size=1_000_000)

    async with member(cluster, unique, {unique: 1}) as (_, streams):
        batches = await take_batches(streams[unique][0], RECORDS)

    values = {value for batch in batches for value in batch.column("value").to_pylist()}
    assert values == {each.value for each in sent}
    output = [thread for size, thread in decoded if size >= decode_and_queue.SMALL_RESPONSE]
    assert output[0], "the first response of a partition may expand"
    assert output[-1] == in_thread
    if in_thread:
        assert all(output)
