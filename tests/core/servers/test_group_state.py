"""What brokers of each version say about the groups that they coordinate, in every version of each request.

With KZCONSUMER_CAPTURE=1 KZCONSUMER_NIGHTLY=1 it writes `captured_groups.json`, of which `test_groups_captured` reads.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from kzconsumer.brokers.protocol.versions import Versions
from kzconsumer_sandbox.servers.jars import kafka_version
from kzconsumer_sandbox.servers.topic_creation import create_topic, create_topic_in_kraft
from tests.core.plain.test_groups_captured import (
    ALONE,
    CLASSIC,
    NEWER,
    PARTITIONS,
    PLACE,
    SHARE,
    TOPIC,
    Answers,
    check,
    requests,
)
from tests.core.servers.test_broker_connection import LIMIT, connected, levels
from tests.support.extent import extent
from tests.support.kafka_consumer import NEWER_PROTOCOL, QUICK_HEARTBEATS, java_member, kafka_member, share_member
from tests.support.kafka_offsets import move_kafka_offset
from tests.support.producing import Sent, produce
from tests.support.servers import Servers

CAPTURED: dict[str, Answers] = json.loads(PLACE.read_text()) if PLACE.exists() else {}
VERSIONS = extent(("1.1.1",), ("0.9.0.1", "0.10.2.2", "1.1.1", "2.8.2", "3.9.1", "4.2.0"))


def raw(request: Any) -> Any:
    """The request, whose response is not decoded."""
    return SimpleNamespace(api_key=request.api_key, encode=request.encode, decode=lambda _, body: bytes(body))


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_of_every_request(servers: Servers, version: str, tmp_path: Path) -> None:
    """In a cluster of its own, which has no other groups."""
    newer = not kafka_version(version).zookeeper
    cluster = servers.cluster(f"groups-{version}", version, config=QUICK_HEARTBEATS if newer else {})
    if newer:
        await asyncio.to_thread(create_topic_in_kraft, cluster.bootstrap, TOPIC, PARTITIONS)
    else:
        await create_topic(cluster.connect, TOPIC, PARTITIONS)
    await move_kafka_offset(cluster, ALONE, TOPIC, 0)
    answers: Answers = {}
    async with AsyncExitStack() as members:
        if version == "0.9.0.1":
            java = members.enter_context(java_member(servers, cluster, CLASSIC, TOPIC, tmp_path / "java"))
            with anyio.fail_after(LIMIT):
                while not java.values:  # it has its partitions
                    await asyncio.to_thread(produce, cluster.bootstrap, version, TOPIC, [Sent(0, None, b"x")])
        else:
            await members.enter_async_context(kafka_member(cluster, CLASSIC, TOPIC, client_id="client"))
        if newer:
            await members.enter_async_context(kafka_member(cluster, NEWER, TOPIC, client_id="client", **NEWER_PROTOCOL))
            await members.enter_async_context(share_member(cluster, SHARE, TOPIC))
        connection = await members.enter_async_context(connected(cluster))
        spoken = connection.versions
        for api, request in requests(version).items():
            for level in levels(spoken, request.api_key):
                connection.versions = Versions({request.api_key: (level, level)})
                body = await connection.call(raw(request), timeout=LIMIT)
                check(version, api, level, request.decode(level, memoryview(body)))
                answers[f"{api} {level}"] = request.encode(level).hex(), body.hex()
    if os.environ.get("KZCONSUMER_CAPTURE"):
        CAPTURED[version] = answers
        order = sorted(CAPTURED, key=lambda number: [int(part) for part in number.split(".")])
        PLACE.write_text(json.dumps({number: CAPTURED[number] for number in order}, indent=2) + "\n")
    assert CAPTURED[version].keys() == answers.keys()
