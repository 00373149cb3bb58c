"""A real browser for tests: headless Chromium from Debian.

Tests only check what a person would see; faults that the browser reports on the way are collected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.support.programs import CHROMIUM, need

expect.set_options(timeout=30_000)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    program = need(CHROMIUM)
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=program, timeout=60_000)
        try:
            yield opened
        finally:
            await opened.close()


class Window:
    """One page, its faults, and the addresses it requested."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        self.asked: set[str] = set()
        page.on("console", lambda line: self.faults.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))

    async def barriers(self) -> list[str]:
        """What axe finds that prevents people from using the page."""
        found: dict[str, Any] = (await Axe().run(self.page)).response
        return [
            f"{each['id']}: {node['html']} {node.get('failureSummary')}"
            for each in found["violations"]
            for node in each["nodes"]
        ]

    async def overflow(self) -> int:
        """Pixels by which it is wider than the window."""
        wider = await self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return int(wider)


@asynccontextmanager
async def window(of: Browser, width: int = 1280, height: int = 900, **options: Any) -> AsyncIterator[Window]:
    page = await of.new_page(viewport={"width": width, "height": height}, **options)
    page.set_default_timeout(60_000)
    try:
        yield Window(page)
    finally:
        await page.close()
