"""What the status page writes, in a real browser: figures, axes, and a sentence of help for each term."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import anyio
import pytest
from playwright.async_api import Browser, Page, expect

from kzconsumer.display import count, moment, rate, span
from kzconsumer.status.report import Point
from kzconsumer.status.status_server import serving
from kzconsumer_sandbox.servers.configuration import free_port
from tests.core.plain.test_status_server import observer
from tests.support.browser import Window, window
from tests.support.programs import CHROMIUM

pytestmark = [pytest.mark.needs(CHROMIUM), pytest.mark.asyncio(loop_scope="package")]

SECONDS = (None, 0, 0.0004, 0.0125, 0.04, 0.9996, 1, 1.25, 2.5, 9.94, 9.96, 12.5, 13.5, 59.4, 59.6, 61.9, 3599.9, 7260,
           86_399, 86_400, 324.9 * 86_400)  # fmt: skip
RATES = (None, 0, 0.04, 0.25, 0.75, 3.04, 9.95, 9.99, 10, 12.5, 13.5, 999.5, 4512.3, 1_234_567.8)
COUNTS = (None, 0, 999, 1000, 1_234_567, 2**53 - 1)
TIMES = (None, 0, 1_769_813_999.875, 1_800_000_000)
OFFSETS = (None, 0, 2**31 + 1, 2**53 - 1, 2**53 + 1, 2**62 + 1, 2**63 - 1)


async def test_figures_are_those_of_the_command_line(chromium: Browser) -> None:
    words = (files("kzconsumer.status") / "browser" / "words.js").read_text()
    calls: list[tuple[str, Any]] = [("duration", each) for each in SECONDS] + [("rate", each) for each in RATES]
    calls += [("count", each) for each in COUNTS] + [("moment", each) for each in TIMES]
    calls += [("offset", json.dumps({"end": each})) for each in OFFSETS]
    async with window(chromium, locale="de-DE", timezone_id="Asia/Tokyo") as desk:
        page = await desk.page.evaluate(
            f"(calls) => {{ {words}; const by = {{ duration, rate, count, moment }};"
            " by.offset = (document) => offset(parsed(document).end);"
            " return calls.map(([name, value]) => by[name](value)); }",
            calls,
        )
    assert dict(zip(calls, page, strict=True)) == {call: command_line(*call) for call in calls}


def command_line(name: str, value: Any) -> str:
    if name == "moment":
        return moment(None if value is None else datetime.fromtimestamp(value, UTC))
    if name == "offset":
        given = json.loads(value)["end"]
        return "-" if given is None else str(given)
    return {"duration": span, "rate": rate, "count": count}[name](value)


@asynccontextmanager
async def opened(chromium: Browser, *points: Point) -> AsyncIterator[Window]:
    """The page of a member that has not joined, with this history."""
    at = f"127.0.0.1:{free_port()}"
    watched = observer(at)
    watched.history.extend(points)
    async with serving(watched), window(chromium) as desk:
        await desk.page.goto(f"http://{at}/status")
        await expect(desk.page.locator("#readiness")).to_have_text("not examined")
        yield desk


def history(lag: int) -> list[Point]:
    begin = time.time() - 600
    return [Point(begin + 5 * n, 1, 0, (now := lag * n // 120), now, 0, 0.0, lag / 100 * (n % 7)) for n in range(121)]


async def test_axes_fit_and_have_whole_numbers_from_0(chromium: Browser) -> None:
    for lag in (0, 1, 3, 1_204, 98_765_432_109):
        async with opened(chromium, *history(lag)) as desk:
            await assert_axes_fit(desk)
            assert desk.faults == [], lag


async def assert_axes_fit(desk: Window) -> None:
    for width in (320, 360, 800, 1440):
        await desk.page.set_viewport_size({"width": width, "height": 900})
        for chart in ("#lag-chart", "#rate-chart"):
            await expect(desk.page.locator(f"{chart} text")).to_have_count(6)
            await desk.page.wait_for_timeout(100)  # a chart is drawn again when its size has changed
            box, found = await labels(desk.page, chart)
            with anyio.move_on_after(5):  # later on a busy machine
                while found[-1][1]["right"] > box["right"] + 0.5:
                    await desk.page.wait_for_timeout(100)
                    box, found = await labels(desk.page, chart)
            assert_fits(box, found)


async def labels(page: Page, chart: str) -> tuple[dict[str, float], list[tuple[str, dict[str, float]]]]:
    """The box of a chart, and its labels with theirs."""
    box, found = await page.locator(chart).evaluate(
        "(svg) => { const box = (of) => { const { left, right, top, bottom } = of.getBoundingClientRect();"
        " return { left, right, top, bottom }; };"
        " return [box(svg), [...svg.querySelectorAll('text')].map((each) => [each.textContent, box(each)])]; }"
    )
    return box, found


def assert_fits(box: dict[str, float], found: list[tuple[str, dict[str, float]]]) -> None:
    for text, at in found:
        assert box["left"] <= at["left"], f"{text} is cut"
        assert at["right"] <= box["right"] + 0.5, f"{text} is cut"
    for number, (text, at) in enumerate(found):
        for other, beside in found[number + 1 :]:
            apart = at["right"] <= beside["left"] or beside["right"] <= at["left"]
            assert apart or at["bottom"] <= beside["top"] + 1 or beside["bottom"] <= at["top"] + 1, f"{text} on {other}"
    numbers = [int(text.replace(",", "")) for text, _ in found if ":" not in text]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))


async def test_every_term_has_a_sentence(chromium: Browser) -> None:
    """As a title, and in the list at the end, which a keyboard and a finger reach."""
    async with opened(chromium) as desk:
        page = desk.page
        await expect(page.locator("#figures dt")).to_have_count(8)
        heads = await page.locator("thead th").all_text_contents()
        figures = await page.locator("#figures dt").all_text_contents()
        assert len(heads) > 35
        await page.get_by_text("Every figure and column head in a sentence").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#words")).to_be_visible()
        terms = await page.locator("#words dt").all_text_contents()
        sentences = await page.locator("#words dd").all_text_contents()
        assert set(heads) | set(figures) == set(terms), "no head without a sentence, and no sentence without a head"
        assert len(terms) == len(set(terms))
        assert all(re.fullmatch(r"[A-Z].*\.", each) for each in sentences)
        by_term = dict(zip(terms, sentences, strict=True))
        for head in await page.locator("thead th").all():
            assert (
                await head.get_attribute("title") == by_term[await head.inner_text() or await head.text_content() or ""]
            )
        for box in await page.locator("#figures > div").all():
            assert await box.get_attribute("title") == by_term[await box.locator("dt").text_content() or ""]
        assert await desk.barriers() == []


async def test_there_is_no_time_left_where_none_is_known(chromium: Browser) -> None:
    async with opened(chromium) as desk:
        await expect(desk.page.locator("#figures dt", has_text="Lag")).to_be_visible()
        await expect(desk.page.locator("#figures dt", has_text="Done in")).to_be_hidden()
