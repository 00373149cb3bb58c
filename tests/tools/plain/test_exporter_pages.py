"""All that an exporter and `top --of` say of groups in which something is wrong, to the letter: `exporter_pages.txt`.

After an intended change, `python -m tests.tools.plain.test_exporter_pages` rewrites the page.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import anyio
from aiohttp import ClientSession, UnixConnector

from kzconsumer.model import TopicPartition
from kzconsumer.settings.settings import Settings
from kzconsumer_tools.exporter.exporter import Exporter
from kzconsumer_tools.exporter.exporter_server import families, serving
from kzconsumer_tools.exporter.group_feed import GroupFeed
from tests.core.plain.test_status_documents import lines, samples
from tests.support.simulated.observed import WRITTEN
from tests.support.simulated.virtual_time import BEGINNING
from tests.tools.plain.test_transcripts import CONNECT, Scene, much_is_wrong, ours, prepared

PAGE = Path(__file__).with_name("exporter_pages.txt")
INTERVAL = 30.0
AT = "/v3/kafka/c"
PATHS = (
    *("/burrow/admin", "/burrow/admin/ready", "/v3/kafka", AT, "/v3/kafka/other", f"{AT}/topic", f"{AT}/consumer"),
    *(f"{AT}/topic/{topic}" for topic in ("orders", "gone", "odd")),
    *(f"{AT}/topic/{topic}/consumers" for topic in ("orders", "pay", "gone")),
    *(
        f"{AT}/consumer/{rest}"
        for rest in ("g", "g/status", "g/lag", "well", "well/status", "well/lag", "no", "no/lag")
    ),
    "/v3/kafka/other/consumer/g/lag",
)


def page(folder: Path) -> Iterator[str]:
    with prepared(1000) as group, mock.patch("socket.gethostname", return_value="host"):
        at = Scene(group)
        much_is_wrong(at)
        at.offsets("well", pay=[7, 0])
        at.member("well", "well_a", ours(pay=1), {"pay/0": "well_a-0"})
        group.world.pass_time(60.0)

        def whole_seconds() -> float:
            return WRITTEN + round(group.world.now - BEGINNING)

        with mock.patch("time.time", whole_seconds):
            for line in _followed(at, folder):
                if "exporter_read_seconds" not in line:  # what a reading takes
                    yield re.sub(r"\d+\.\d{4,}", rounded, line)


def rounded(number: re.Match[str]) -> str:
    """To whole seconds, or two digits of a rate: a request more does not matter."""
    value = float(number[0])
    return f"{value:.0f}" if value >= 1 else f"{value:.2g}"


def _followed(at: Scene, folder: Path) -> Iterator[str]:
    settings = Settings.from_dict({"zookeeper": {"connect": CONNECT}, "group": {"id": "unused"}})
    exporter = Exporter(settings, "c", INTERVAL, 100.0)
    feeds = {name: GroupFeed(settings, name) for name in ("g", "well", "absent", "locked")}
    process = at.group.world.process("exporter")
    yield from asyncio.run(got(exporter, folder, "/burrow/admin/ready", f"{AT}/consumer"))
    tasks = [process.create_task(exporter.run())]
    try:
        at.group.world.pass_time(5.0)
        for number in range(8):
            if number == 5:
                tasks += [process.create_task(feed.run()) for feed in feeds.values()]
            at.set(f"/consumers/g/offsets/orders/{number % 3}", str(9 + number))
            at.set("/consumers/well/offsets/pay/0", str(9 + number))
            at.group.logs.burst(1)
            at.group.world.pass_time(INTERVAL / 2)
        at.group.logs.lead(TopicPartition("pay", 1), 1)
        at.group.logs.retain(TopicPartition("orders", 4), 12)
        at.group.world.pass_time(INTERVAL)
    finally:
        for task in tasks:
            task.cancel()
        at.group.world.pass_time(1.0)
    yield from asyncio.run(got(exporter, folder, *PATHS))
    yield from samples(families(exporter))
    for name, feed in feeds.items():
        yield from ("", f"top --of {name}", *lines({"lost": feed.lost is not None, "reason": feed.reason}))
        for document in feed.documents.values():
            yield from lines(document)
    logged = ((each["level"], each["event"], each.get("reason")) for each in at.group.events)
    yield from ("", "log", *(f"  {level} {event}: {reason}" for level, event, reason in dict.fromkeys(logged)))


async def got(exporter: Exporter, folder: Path, *paths: str) -> list[str]:
    """What it answers now."""

    async def waits(_: Exporter) -> None:
        await anyio.sleep_forever()

    found = []
    socket = f"{folder}/socket"
    with mock.patch.object(Exporter, "run", waits):
        async with (
            serving(exporter, f"unix:{socket}"),
            ClientSession("http://exporter", connector=UnixConnector(socket)) as http,
        ):
            for path in paths:
                async with http.get(path) as answer:
                    text = await answer.text()
                    said = lines(json.loads(text)) if answer.content_type == "application/json" else [f"  {text}"]
                    found += [f"GET {path}: {answer.status}", *said, ""]
    return found


def test_what_an_exporter_says(tmp_path: Path) -> None:
    assert [*page(tmp_path)] == PAGE.read_text().splitlines()


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        PAGE.write_text("\n".join([*page(Path(made)), ""]))
