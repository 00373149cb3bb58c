"""Work in a pool of processes.

Shows: explicit acknowledgement in any order, a bound for what is in work.

eval "$(kzconsumer sandbox env)"      # or: export KZCONSUMER__ZOOKEEPER__CONNECT=zk1:2181/kafka
python pool.py
"""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import kzconsumer

PROCESSES, IN_WORK = 2, 100
SETTINGS = {
    "zookeeper": {"connect": os.environ["KZCONSUMER__ZOOKEEPER__CONNECT"]},
    "group": {"id": "example-pool"},
    "subscription": {"stop_at": "end"},
}


def digest(value: bytes) -> str:
    """Work that needs a processor; it runs in another process."""
    return hashlib.scrypt(value, salt=b"orders", n=256, r=8, p=1, dklen=8).hex()


async def main() -> None:
    loop, slots = asyncio.get_running_loop(), asyncio.Semaphore(IN_WORK)

    async def work(stream: kzconsumer.KafkaStream, message: kzconsumer.Message) -> None:
        try:
            result = await loop.run_in_executor(pool, digest, message.value or b"")
        finally:
            slots.release()
        print(message.partition, message.offset, result)
        # What is committed is the offset of the first record that is not acknowledged. False: the partition has moved
        # meanwhile, so its new owner does the work again.
        stream.ack(message)

    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        settings = kzconsumer.Settings.from_dict(SETTINGS)
        async with kzconsumer.connect(settings, acknowledge="explicit") as consumer, asyncio.TaskGroup() as tasks:
            (stream,) = (await consumer.create_message_streams({"orders": 1}))["orders"]
            async for message in stream:
                await slots.acquire()
                tasks.create_task(work(stream, message))


if __name__ == "__main__":  # processes of the pool import this module
    asyncio.run(main())
