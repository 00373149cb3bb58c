"""The page of a member with a fault, in each state, at four widths, light and dark.

`KZCONSUMER_IMAGES=1 pytest tests/core/browser/test_degraded_page.py` writes the images of docs/monitoring.md,
in two minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

import aiohttp
import anyio
import pytest
from playwright.async_api import Browser, expect

from kzconsumer.status.status_server import serving
from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.plain.test_status_server import observer
from tests.support.browser import Window, window
from tests.support.extent import extent
from tests.support.members import daemon, reader, settings
from tests.support.producing import Sent, produce
from tests.support.programs import CHROMIUM
from tests.support.zookeeper_sessions import until

pytestmark = [pytest.mark.needs(CHROMIUM), pytest.mark.asyncio(loop_scope="package")]

Scheme: TypeAlias = Literal["light", "dark"]
IMAGES = Path(__file__).parents[3] / "docs" / "images" if os.environ.get("KZCONSUMER_IMAGES") else None
ALL: list[tuple[int, Scheme]] = [(width, scheme) for width in (360, 768, 1280, 1920) for scheme in ("light", "dark")]
LIGHT, DARK = ALL[0], ALL[-1]


async def assert_accessible(desk: Window, *examined: tuple[int, Scheme]) -> None:
    """The examined ones by axe, which takes half a second of a processor for each; at night all."""
    for width, scheme in ALL:
        await desk.page.set_viewport_size({"width": width, "height": 900})
        await desk.page.emulate_media(color_scheme=scheme)
        assert await desk.overflow() == 0, (width, scheme)
        if (width, scheme) in extent([*examined], ALL):
            assert await desk.barriers() == [], (width, scheme)


async def picture(desk: Window, name: str, width: int, height: int, scheme: Scheme) -> None:
    if IMAGES is not None:
        await desk.page.set_viewport_size({"width": width, "height": height})
        await desk.page.emulate_media(color_scheme=scheme)
        await desk.page.wait_for_timeout(300)
        await desk.page.screenshot(path=IMAGES / f"{name}.png")


async def test_while_it_starts(chromium: Browser) -> None:
    at = f"127.0.0.1:{free_port()}"
    async with serving(observer(at)), window(chromium) as desk:
        await desk.page.goto(f"http://{at}/status")
        await expect(desk.page.locator("#readiness")).to_have_text("not examined")
        await expect(desk.page).to_have_title("(!) not examined · orders · kzconsumer")
        await expect(desk.page.locator("#facts")).to_contain_text("cluster zk1:2181 · up for ")
        await assert_accessible(desk, DARK)


async def test_a_sink_that_blocks(chromium: Browser, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """Ready, degraded with the stalled partitions first, and not reachable."""
    name = "orders" if IMAGES is not None else unique
    await create_topic(cluster.connect, name, 8)

    async def send(partitions: Iterable[int], value: bytes, number: int) -> None:
        records = [Sent(partition, None, value) for partition in partitions for _ in range(number)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, name, records)

    extra = (
        '[status]\nlisten = "127.0.0.1:0"\nstalled_after = "2s"\n[stop]\ndeadline = "1s"\n'
        '[sink]\nplugin = "callable"\noptions = { function = "tests.support.sinks:hang_on_poison" }\n'
    )
    await send(range(8), b"harmless", 250)
    long = {"connect": cluster.connect, "session_timeout": "30s"}  # axe takes the processors for seconds
    group = settings(cluster.connect, name, zookeeper=long, group={"id": name, "consumer_id": "z-other"})
    with daemon(tmp_path, cluster.connect, name, {name: 1}, extra, session_timeout="30s") as member:
        await until(lambda: member.events("status is served"), 30)
        at = member.events("status is served")[0]["at"]
        async with window(chromium) as desk, reader(group, {name: 1}) as other:
            page = desk.page
            await page.goto(at)
            await expect(page.locator("#readiness")).to_have_text("healthy")
            await expect(page.locator("#partitions-table tbody tr")).to_have_count(4)
            await expect(page.locator("#group-table tbody tr")).to_have_count(8)
            await expect(page).to_have_title(f"{name} · kzconsumer")
            if IMAGES is not None:
                for _ in range(30):
                    await send(range(8), b"harmless", 40)
                    await anyio.sleep(1)
            await assert_accessible(desk)

            ours = sorted(set(range(8)) - {each.partition for each in other.owned})
            faulty = [ours[1], ours[3]]
            await send(faulty, b"poison", 4)
            sentence = f"2 partitions stalled: {name}-{faulty[0]}, {name}-{faulty[1]} (sink slow)"
            await expect(page.locator("#readiness")).to_have_text("unhealthy")
            await expect(page.locator("#findings .what")).to_have_text([sentence])
            assert (await page.locator("main").inner_text()).startswith("What is wrong\n"), "before everything else"
            await expect(page).to_have_title(f"(!) unhealthy · {name} · kzconsumer")
            await send(faulty, b"harmless", 1200)
            heads = page.locator("#partitions-table tbody th")
            for place in range(2):
                await expect(page.locator("#partitions-table tbody tr").nth(place)).to_contain_text(": sink slow")
            assert (await heads.all_text_contents())[:2] == [f"{name}-{each}" for each in faulty], "worst first"
            await assert_accessible(desk, LIGHT, DARK)

            for place in range(2):
                await expect(page.locator("#group-table tbody tr").nth(place)).to_contain_text("1,204")
            async with aiohttp.ClientSession(at) as client:
                async with client.get("/health/ready") as answer:
                    assert answer.status == 200, "a member that is taken out helps nobody"
                    assert [each["text"] for each in (await answer.json())["findings"]] == [sentence]
                async with client.get("/metrics") as answer:
                    assert (
                        f'kzconsumer_health{{group="{name}",kzconsumer_health="unhealthy"}} 1.0' in await answer.text()
                    )
                async with client.get("/api/v1/status") as answer:
                    (found,) = (await answer.json())["findings"]
                assert found["partitions"] == [f"{name}-{each}" for each in faulty]
                async with client.get("/api/v1/group") as answer:
                    partitions = json.loads(await answer.text())["partitions"]
            assert [(each["partition"], each["end"]) for each in partitions if each["partition"] in faulty] == [
                (each, partitions[each]["committed"] + 1204) for each in faulty
            ]
            theirs = {each["partition"]: each["owner"] for each in partitions if each["partition"] not in ours}
            assert set(theirs.values()) == {f"{other.consumer.consumer}-0"}
            await picture(desk, "status-page", 1440, 960, "light")
            await picture(desk, "status-page-phone", 360, 740, "dark")

            member.signal(signal.SIGKILL)
            await expect(page.locator("#readiness")).to_have_text("not reachable", timeout=60_000)
            await expect(page).to_have_title(f"(!) not reachable · {name} · kzconsumer")
            await assert_accessible(desk, LIGHT)
