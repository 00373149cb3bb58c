"""Page, JSON, metrics, status line and `top` of one member in odd states: one table, without a disagreement.

What is expected follows from what was produced. With KZCONSUMER_IMAGES=1 it writes images of docs/monitoring.md.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from playwright.async_api import Page, expect
from prometheus_client.parser import text_string_to_metric_families

from kzconsumer.lag.partition import FRESH
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.browser import browser, window
from tests.support.extent import only_nightly
from tests.support.members import daemon
from tests.support.producing import Sent, produce
from tests.support.programs import CHROMIUM
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import until

IMAGES = Path(__file__).parents[3] / "docs" / "images" if os.environ.get("KZCONSUMER_IMAGES") else None
PARTITIONS = 4
#: Seconds for a state to be in all views, most of which is the age at which a reading is no longer present.
LIMIT = 2 * FRESH + 40.0


class Shown(NamedTuple):
    """What a view says: records that wait at least, partitions of which that is not all, and the health."""

    at_least: int
    unknown: int
    health: str


def in_text(text: str, health: str) -> Shown:
    """`5`, `at least 5 (2 unknown: no leader)`, `unknown (no leader)`, and the same with words around them."""
    unknown = re.search(r"(\d+) unknown", text)
    number = re.search(r"\d+", text.split("(")[0])
    least = int(number[0]) if number else 0
    return Shown(least, int(unknown[1]) if unknown else PARTITIONS if "unknown" in text else 0, health)


async def views(at: str, page: Page) -> dict[str, Shown]:
    async with aiohttp.ClientSession(at) as client:
        async with client.get("/api/v1/status") as answer:
            status: dict[str, Any] = await answer.json()
        async with client.get("/api/v1/partitions") as answer:
            owned = (await answer.json())["owned"]
        async with client.get("/health/ready") as answer:
            ready = await answer.json()
        async with client.get("/metrics") as answer:
            families = {each.name: each.samples for each in text_string_to_metric_families(await answer.text())}
    states = [each["progress"] for each in owned]
    metric = {
        name: sum(sample.value for sample in families.get(f"kzconsumer_{name}", []))
        for name in ("lag_at_least_records", "lag_unknown_partitions")
    }
    (health,) = (s.labels["kzconsumer_health"] for s in families["kzconsumer_health"] if s.value)
    figure = page.locator("#figures > div", has_text="Lag").locator("dd")
    on_page = " ".join(await figure.all_text_contents())
    lag = re.sub(r"^≥ (.*?) (\d+ unknown.*)$", r"at least \1 (\2)", on_page).replace(",", "")
    return {
        "status": Shown(status["total"]["at_least"], sum(status["total"]["unknown"].values()), status["health"]),
        "status, text": in_text(status["lag_text"], ready["health"]),
        "status line": in_text(re.sub(r"^consuming \d+ partitions, ", "", status["state"]), status["health"]),
        "partitions": Shown(
            sum(each["at_least"] for each in states), sum(each["lag"] is None for each in states), status["health"]
        ),
        "metrics": Shown(int(metric["lag_at_least_records"]), int(metric["lag_unknown_partitions"]), health),
        "page": in_text(lag, await page.locator("#readiness").inner_text()),
    }


async def on_top(at: str) -> Shown:
    wide = os.environ | {"COLUMNS": "250"}
    command = [sys.executable, "-m", "kzconsumer", "top", "--once", at]
    shown = (await anyio.run_process(command, check=False, env=wide)).stdout.decode().splitlines()
    (sums,) = (line for line in shown if " behind by " in line)
    return in_text(sums.split("lag ")[1].split("  behind by")[0], shown[2].split("  ")[-1].strip())


@pytest.mark.needs(CHROMIUM)
@pytest.mark.timeout(600)
@only_nightly
@pytest.mark.parametrize("version", ["1.1.1", "3.9.1"])
async def test_the_views_of_a_member_agree_in_every_state(
    servers: Servers, unique: str, tmp_path: Path, version: str
) -> None:
    """Two brokers, each the only one that has its half of the partitions."""
    name = "orders" if IMAGES is not None else unique
    zookeeper = servers.own_zookeeper(f"zookeeper-{unique}")
    cluster = servers.cluster(unique, version, brokers=2, zookeeper=zookeeper)
    await create_topic(cluster.connect, name, PARTITIONS)
    table: list[tuple[str, str, Shown]] = []

    async def send(value: bytes, number: int, partitions: int = PARTITIONS) -> None:
        records = [Sent(partition, None, value) for partition in range(partitions) for _ in range(number)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, name, records)

    async def suspend_zookeeper() -> None:
        zookeeper.send_signal(signal.SIGSTOP)

    async def resume_and_be_slow() -> None:
        zookeeper.send_signal(signal.SIGCONT)
        await send(b"poison", 5)

    async def stop_broker(number: int) -> None:
        await anyio.to_thread.run_sync(cluster.brokers[number].kill)

    extra = (
        '[status]\nlisten = "127.0.0.1:0"\nstalled_after = "5s"\n[stop]\ndeadline = "1s"\n'
        '[sink]\nplugin = "callable"\noptions = { function = "tests.support.sinks:hang_on_poison" }\n'
    )
    states: list[tuple[str, Callable[[], Awaitable[object]], Shown]] = [
        ("empty logs", lambda: anyio.lowlevel.checkpoint(), Shown(0, 0, "healthy")),
        ("caught up", lambda: send(b"harmless", 25), Shown(0, 0, "healthy")),
        ("zookeeper away", suspend_zookeeper, Shown(0, 0, "not examined")),
        ("slow sink", resume_and_be_slow, Shown(5 * PARTITIONS, 0, "unhealthy")),
        ("no leader", lambda: stop_broker(2), Shown(5 * PARTITIONS, PARTITIONS // 2, "unhealthy")),
        ("cut off", lambda: stop_broker(1), Shown(5 * PARTITIONS, PARTITIONS, "unhealthy")),
    ]
    with daemon(tmp_path, cluster.connect, name, {name: 1}, extra) as member:
        await until(lambda: member.events("status is served"), 30)
        at = member.events("status is served")[0]["at"]
        async with browser() as chromium, window(chromium) as desk:
            await desk.page.goto(at)
            await expect(desk.page.locator("#figures > div").first).to_be_visible()
            for state, begins, expected in states:
                await begins()
                found: dict[str, Shown] = {}
                with anyio.move_on_after(LIMIT):
                    while set((found := await views(at, desk.page)).values()) != {expected}:
                        await anyio.sleep(1)
                found["top"] = await on_top(at)
                table += [(state, view, shown) for view, shown in found.items()]
                assert {view: shown for view, shown in found.items() if shown != expected} == {}, (state, expected)
                if IMAGES is not None:
                    narrow = state == "zookeeper away"
                    await desk.page.set_viewport_size({"width": 768 if narrow else 1280, "height": 800})
                    await desk.page.emulate_media(color_scheme="dark" if narrow else "light")
                    await desk.page.wait_for_timeout(2500)
                    await desk.page.screenshot(path=IMAGES / f"status-page-{state.replace(' ', '-')}.png")
    print("\n".join(f"{state:<12} {view:<14} {shown}" for state, view, shown in table))
    await anyio.to_thread.run_sync(cluster.kill)
    assert len(table) == 7 * len(states)
