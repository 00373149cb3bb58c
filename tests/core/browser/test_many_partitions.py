"""The page with 1, 40 and 2,000 partitions: what is wrong stands first, and what is fine is one line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from unittest import mock

import msgspec
import pytest
from playwright.async_api import Browser, expect

from kzconsumer.lag.partition import Measured, PartitionFacts, Why, partition_lag
from kzconsumer.status.partition_health import PartitionStatus
from kzconsumer.status.status_server import serving
from kzconsumer_sandbox.servers.configuration import free_port
from tests.core.plain.test_status_metrics import report
from tests.core.plain.test_status_report import KNOWN
from tests.core.plain.test_status_server import observer
from tests.support.browser import Window, window
from tests.support.programs import CHROMIUM

pytestmark = [pytest.mark.needs(CHROMIUM), pytest.mark.asyncio(loop_scope="package")]

NOW = 1_000.0
FINE = msgspec.structs.replace(
    KNOWN,
    topic="orders.payments",
    state="caught up",
    progress=msgspec.structs.replace(
        partition_lag(
            PartitionFacts(topic="orders.payments", partition=0, position=20, end=Measured(20, NOW)), NOW, NOW
        ),
        age=0.0,
    ),
)
CUT = PartitionFacts(
    topic="orders.payments", partition=0, position=20, end=Measured(20, NOW - 40), silent=Why("brokers unreachable")
)


def fine(number: int) -> PartitionStatus:
    return msgspec.structs.replace(FINE, partition=number)


def stalled(number: int) -> PartitionStatus:
    return msgspec.structs.replace(
        KNOWN, topic="orders.payments", partition=number, state="stalled", stalled=True, standing=90.0, rate=0.0,
        hindrance="sink slow",
    )  # fmt: skip


def cut_off(number: int) -> PartitionStatus:
    progress = partition_lag(CUT, NOW, NOW)
    return msgspec.structs.replace(
        FINE, partition=number, state="unknown", progress=progress, standing=30.0, hindrance="no leader", eta=None
    )


@asynccontextmanager
async def shown(chromium: Browser, partitions: Sequence[PartitionStatus]) -> AsyncIterator[Window]:
    at = f"127.0.0.1:{free_port()}"
    watched = observer(at)
    shown = msgspec.structs.replace(report(), partitions=list(partitions))
    with mock.patch.object(watched, "report", return_value=shown):
        async with serving(watched), window(chromium) as desk:
            await desk.page.goto(f"http://{at}/status")
            await expect(desk.page.locator("#figures > div").first).to_be_visible()
            yield desk
            assert desk.faults == []


async def rows(desk: Window) -> list[str]:
    return await desk.page.locator("#partitions-table tbody th").all_text_contents()


async def test_what_is_fine_is_one_line(chromium: Browser) -> None:
    async with shown(chromium, [fine(0)]) as desk:
        assert await rows(desk) == ["orders.payments-0"], "of few partitions all are shown"
        await expect(desk.page.locator("#wrong")).to_be_hidden()
    for number in (40, 2_000):
        async with shown(chromium, [fine(each) for each in range(number)]) as desk:
            assert await rows(desk) == []
            await expect(desk.page.locator("#partitions-fine")).to_have_text(f"{number:,} partitions caught up")
            await expect(desk.page.locator("#partitions-table")).to_contain_text("Every partition is caught up.")
            await desk.page.locator("#fine").check()
            assert len(await rows(desk)) == min(number, 300)
            await expect(desk.page.locator("#partitions-fine")).to_be_hidden()
            await desk.page.locator("#fine").uncheck()
            await desk.page.locator("#named").fill("orders.payments-39")
            assert await rows(desk)
            assert all(each.startswith("orders.payments-39") for each in await rows(desk)), "a search finds all"


async def test_what_is_wrong_stands_first_at_every_width(chromium: Browser) -> None:
    """Below it only what needs attention, the worst first, on a phone too."""
    partitions = [*(fine(each) for each in range(38)), stalled(38), cut_off(39)]
    async with shown(chromium, partitions) as desk:
        assert await rows(desk) == ["orders.payments-38", "orders.payments-39"]
        await expect(desk.page.locator("#partitions-fine")).to_have_text("38 partitions caught up")
        await expect(desk.page.locator("#findings .what")).to_have_text(
            [
                "1 partition stalled: orders.payments-38 (sink slow)",
                "1 partition with unknown lag: orders.payments-39 (brokers unreachable)",
            ]
        )
        lag = desk.page.locator("#figures > div", has_text="Lag").locator("dd")
        assert await lag.all_text_contents() == ["≥ 15", "1 unknown: brokers unreachable"]
        for width in (360, 768, 1280, 1920):
            await desk.page.set_viewport_size({"width": width, "height": 740})
            assert await desk.overflow() == 0
            box = await desk.page.locator("#findings").bounding_box()
            assert box is not None
            assert box["y"] + box["height"] < 740, "without scrolling"


async def test_nothing_unknown_is_shown_as_0(chromium: Browser) -> None:
    async with shown(chromium, [cut_off(each) for each in range(12)]) as desk:
        figures = dict(
            zip(
                await desk.page.locator("#figures dt").all_text_contents(),
                await desk.page.locator("#figures dt + dd").all_text_contents(),
                strict=True,
            )
        )
        assert (figures["Lag"], figures["Behind by"]) == ("unknown", "unknown")
        await expect(desk.page.locator("#figures dt", has_text="Done in")).to_be_hidden()
        cells = desk.page.locator("#partitions-table tbody tr").first.locator("td")
        assert (await cells.all_text_contents())[0] == "unknown lag unknown: brokers unreachable"
        assert (await cells.all_text_contents())[8:10] == ["-", "-"]
