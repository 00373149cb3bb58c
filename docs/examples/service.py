"""An asyncio service.

Shows: two streams, records that cannot be used, and a clean stop at SIGTERM.

eval "$(kzconsumer sandbox env)"      # or: export KZCONSUMER__ZOOKEEPER__CONNECT=zk1:2181/kafka
python service.py                     # as often as you like: the members share the partitions
"""

from __future__ import annotations

import asyncio
import json
import os
import signal

import kzconsumer

SETTINGS = {
    "zookeeper": {"connect": os.environ["KZCONSUMER__ZOOKEEPER__CONNECT"]},
    "group": {"id": "example-service"},
    "rejected": {"policy": "dead-letter", "directory": "dead-letters"},
}


async def handle(order: dict[str, object]) -> None:
    """Your work. What blocks belongs into a thread: `await asyncio.to_thread(...)`."""
    print(order["id"], order["cents"], flush=True)


async def read(stream: kzconsumer.KafkaStream) -> None:
    async for message in stream:
        try:
            order = json.loads(message.value or b"")
            order["id"], order["cents"]
        except (ValueError, TypeError, KeyError) as error:
            # The record is in a file, with its origin and this reason, before its offset is committed.
            await stream.reject(message, f"not an order: {type(error).__name__}")
        else:
            # An exception in here ends the member. The order is redelivered, as its offset is not committed.
            await handle(order)


async def main() -> None:
    async with kzconsumer.connect(kzconsumer.Settings.from_dict(SETTINGS)) as consumer:
        streams = (await consumer.create_message_streams({"orders": 2}))["orders"]
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(read(stream)) for stream in streams]
            stop = tasks.create_task(stopping.wait())
            await asyncio.wait([stop, *readers], return_when=asyncio.FIRST_COMPLETED)
            await consumer.leave()  # commits, leaves the group, and ends the streams
            stop.cancel()


asyncio.run(main())
