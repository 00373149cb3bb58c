"""The tables of the pages, with the style of the site: the second column is seen, also on a phone."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt
from playwright.async_api import Browser

from tests.core.plain.test_pages import PAGES, ROOT
from tests.support.browser import window
from tests.support.programs import CHROMIUM

pytestmark = [pytest.mark.needs(CHROMIUM), pytest.mark.asyncio(loop_scope="package")]

# What the theme does with a table without a class: it is as wide as it has to be, and scrolls.
THEME = """
body { margin: 16px; font: 16px sans-serif }
td, th { padding: 0.9em 1.25em; min-width: 5rem; vertical-align: top }
table { display: inline-block; max-width: 100%; overflow: auto; font-size: 13px }
.md-typeset { max-width: 750px; overflow-wrap: break-word } code { word-break: break-word }
"""
HIDDEN = """
() => [...document.querySelectorAll("tr")].filter(
    (row) => row.children.length > 1 && row.children[1].getBoundingClientRect().left > 0.7 * innerWidth
).map((row) => row.children[0].textContent)
"""


async def test_the_second_column_of_a_table_is_in_view(chromium: Browser) -> None:
    style = (ROOT / "docs" / "site.css").read_text()
    render = MarkdownIt("commonmark").enable("table").render
    hidden, rows = {}, 0
    async with window(chromium) as desk:
        for page in PAGES:
            shown = render((ROOT / page).read_text())
            await desk.page.set_content(f"<style>{THEME}{style}</style><div class=md-typeset>{shown}</div>")
            rows += await desk.page.locator("tr").count()
            for width in (390, 1280):
                await desk.page.set_viewport_size({"width": width, "height": 900})
                if found := await desk.page.evaluate(HIDDEN):
                    hidden[page, width] = found
    assert rows > 500
    assert hidden == {}
