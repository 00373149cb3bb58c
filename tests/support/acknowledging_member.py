"""A member that acknowledges in a random order, as a process of its own that can be killed:
`python -m tests.support.acknowledging_member ZOOKEEPER GROUP TOPIC SEED`.

A line `partition offset` on standard output says that the work on a record is done; only then it is acknowledged.
"""

from __future__ import annotations

import random
import sys

import anyio

import kzconsumer
from kzconsumer.consumer import KafkaStream
from kzconsumer.logs import setup
from kzconsumer.offsets.progress import Message

# So many are always unfinished, so that a kill interrupts some.
UNFINISHED = 40
PAUSE = 0.002


async def work(stream: KafkaStream, chance: random.Random) -> None:
    """Never finishes all its work: at the end, what is left stays unacknowledged."""
    pending: list[Message] = []
    async for message in stream:
        pending.append(message)
        if len(pending) > UNFINISHED:
            done = pending.pop(chance.randrange(len(pending)))
            print(done.partition, done.offset, flush=True)
            stream.ack(done)
            await anyio.sleep(PAUSE)


async def main(zookeeper: str, group: str, topic: str, seed: str) -> None:
    settings = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": zookeeper, "session_timeout": "3s"},
            "group": {"id": group, "revoke_deadline": "500ms"},
            "offsets": {"commit_interval": "50ms"},
        }
    )
    async with kzconsumer.connect(settings, acknowledge="explicit") as consumer:
        (stream,) = (await consumer.create_message_streams({topic: 1}))[topic]
        await work(stream, random.Random(seed))


if __name__ == "__main__":
    setup.configure("warning", "console")
    zookeeper, group, topic, seed = sys.argv[1:]
    anyio.run(main, zookeeper, group, topic, seed)
