"""A program: a member of a group that iterates its streams and prints when it received which record.

It prints `<seconds of kzconsumer.clock> <partition> <offset>` per line, each written at once. Run by `printing_member`;
`work` seconds are spent on every record, awaited or, with `block`, without yielding.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

import kzconsumer
from kzconsumer import clock
from kzconsumer.consumer import KafkaStream
from tests.support.steady_flow import Delivery


class PrintingMember:
    """The process, as the test uses it."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, consumer: str) -> None:
        self._process = process
        self._out = out
        self.consumer = consumer

    def __repr__(self) -> str:
        return f"<PrintingMember {self.consumer} process {self._process.pid}>"

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self, limit: float = 20.0) -> int:
        with anyio.fail_after(limit):
            while (status := self._process.poll()) is None:
                await anyio.sleep(0.02)
        return status

    def delivered(self) -> list[Delivery]:
        lines = (line.split() for line in self._out.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))
        return [Delivery(float(at), int(partition), int(offset)) for at, partition, offset in lines]


@contextmanager
def printing_member(
    folder: Path,
    name: str,
    connect: str,
    group: str,
    topic: str,
    timeout: float,
    *,
    work: float = 0.0,
    block: bool = False,
) -> Iterator[PrintingMember]:
    """A running member `<group>_<name>`; killed at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{name}.out"
    command = [sys.executable, "-m", __name__, connect, group, name, topic, str(timeout), str(work)]
    with out.open("wb") as stdout, (folder / f"{name}.err").open("wb") as stderr:
        process = subprocess.Popen(command + ["--block"] * block, stdout=stdout, stderr=stderr)
    try:
        yield PrintingMember(process, out, f"{group}_{name}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


async def _main(arguments: argparse.Namespace) -> None:
    settings = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": arguments.connect, "session_timeout": f"{arguments.timeout * 1000:.0f}ms"},
            "group": {"id": arguments.group, "consumer_id": arguments.name},
            "offsets": {"commit_interval": "200ms"},
        }
    )

    async def print_all(stream: KafkaStream) -> None:
        async for message in stream:
            os.write(1, b"%.6f %d %d\n" % (clock.now(), message.partition, message.offset))
            if arguments.work and arguments.block:
                time.sleep(arguments.work)  # noqa: ASYNC251  (what applications do)
            elif arguments.work:
                await anyio.sleep(arguments.work)

    await consume_until_terminated(settings, arguments.topic, print_all)


async def consume_until_terminated(
    settings: kzconsumer.Settings, topic: str, consume: Callable[[KafkaStream], Coroutine[Any, Any, None]]
) -> None:
    """Be a member with one stream, which leaves its group at SIGTERM."""
    async with kzconsumer.connect(settings) as consumer, anyio.create_task_group() as tasks:
        (stream,) = (await consumer.create_message_streams({topic: 1}))[topic]
        tasks.start_soon(consume, stream)
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                break
        await consumer.leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for argument in ("connect", "group", "name", "topic"):
        parser.add_argument(argument)
    parser.add_argument("timeout", type=float)
    parser.add_argument("work", type=float)
    parser.add_argument("--block", action="store_true")
    anyio.run(_main, parser.parse_args())
