"""A program: a member of ours that reads one stream and prints `<seconds of the wall clock> <partition> <offset>`.

A line is written before the next record is asked for, so a record is processed only after its line is there. `--plant`
puts a bug in, which the judge has to find.
"""

from __future__ import annotations

import argparse
import os
import time

import anyio

import kzconsumer
from kzconsumer.consumer import KafkaStream
from tests.interop.plants import PLANTS
from tests.support.printing_member import consume_until_terminated


async def main(arguments: argparse.Namespace) -> None:
    settings = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": arguments.connect, "session_timeout": f"{arguments.session:.0f}s"},
            "group": {"id": arguments.group, "consumer_id": arguments.name},
            "offsets": {"commit_interval": f"{arguments.commit * 1000:.0f}ms", "reset": "smallest"},
        }
    )

    async def print_all(stream: KafkaStream) -> None:
        async for message in stream:
            os.write(1, b"%.6f %d %d\n" % (time.time(), message.partition, message.offset))

    await consume_until_terminated(settings, arguments.topic, print_all)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for argument in ("connect", "group", "name", "topic"):
        parser.add_argument(argument)
    parser.add_argument("--session", type=float, required=True)
    parser.add_argument("--commit", type=float, required=True)
    parser.add_argument("--plant", choices=PLANTS)
    given = parser.parse_args()
    if given.plant:
        PLANTS[given.plant]()
    anyio.run(main, given)
