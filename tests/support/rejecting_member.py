"""A member that rejects poison and then kills itself: `python -m tests.support.rejecting_member FILE TOPIC POISON`.

FILE are its settings. It prints a line `offset` for each record that it could use. It sends itself SIGKILL once it has
rejected POISON records, before anything is committed; with 0 it reads until it is stopped.
"""

from __future__ import annotations

import os
import signal
import sys

import anyio

import kzconsumer
from kzconsumer.logs import setup


async def main(file: str, topic: str, deadly: int) -> None:
    rejected = 0
    async with kzconsumer.connect(kzconsumer.Settings.load(file)) as consumer:
        (stream,) = (await consumer.create_message_streams({topic: 1}))[topic]
        async for message in stream:
            if message.value == b"poison":
                await stream.reject(message, "it is poison")
                rejected += 1
                if rejected == deadly:
                    os.kill(os.getpid(), signal.SIGKILL)
            else:
                print(message.offset, flush=True)


if __name__ == "__main__":
    setup.configure("warning", "console")
    file, topic, deadly = sys.argv[1:]
    anyio.run(main, file, topic, int(deadly))
