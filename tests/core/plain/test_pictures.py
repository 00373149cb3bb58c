"""The drawings of the pages are those that `docs/site/pictures.py` makes, and pages show them with a description."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tests.bench.report import DelayLine, DelaySection, RestLine, RestSection, Spread, report

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"
PICTURES = runpy.run_path(str(ROOT / "docs" / "site" / "pictures.py"))["PICTURES"]
GROWTH = runpy.run_path(str(ROOT / "docs" / "site" / "growth.py"))
CLASS = re.compile(r"\.(\w+) \{")


def test_every_drawing_has_a_source() -> None:
    assert {each.name for each in IMAGES.glob("*.svg")} == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_drawing_is_up_to_date(name: str) -> None:
    """`python docs/site/pictures.py` makes it again."""
    assert (IMAGES / name).read_text() == PICTURES[name]()


@pytest.mark.parametrize("name", PICTURES)
def test_every_colour_has_a_dark_counterpart(name: str) -> None:
    drawing = ElementTree.fromstring(PICTURES[name]())
    (style,) = [each.text or "" for each in drawing.iter("{http://www.w3.org/2000/svg}style")]
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    coloured = {name for name in CLASS.findall(light) if re.search(rf"\.{name} \{{[^}}]*#", light)}
    used = {each for element in drawing.iter() for each in element.get("class", "").split()}
    assert coloured & used
    assert coloured <= set(CLASS.findall(dark))
    assert used <= set(CLASS.findall(light))


@pytest.mark.parametrize("name", PICTURES)
def test_a_page_shows_the_drawing_and_describes_it(name: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    described = [match for page in pages for match in re.findall(rf"!\[([^\]]*)\]\(\S*{name}\)", page.read_text())]
    assert described
    assert all(len(each) > 80 for each in described)


def test_the_table_of_measured_costs_is_up_to_date() -> None:
    """`python docs/site/growth.py -n` makes it again."""
    page = (ROOT / "docs" / "performance.md").read_text()
    assert GROWTH["with_table"](page, json.loads((ROOT / "docs" / "site" / "growth.json").read_text())) == page


def test_a_report_of_the_benchmark_becomes_the_table() -> None:
    lines = (RestLine("kzconsumer async for", 0.0414, 0.116, 50 << 20, 0.00123, 0.0021),)
    rests = (RestSection("", 250, 25, 1000, lines), RestSection("", 8, 1, 0, lines))
    first = DelaySection("", (DelayLine("confluent-kafka poll", "first message", Spread(0.1, 0.246, 0.3)),))
    found = msgspec.json.decode(msgspec.json.encode(report("3.9.1", 4, (), (first,), rests)))
    former = [{"partitions": 8, "topics": 1, "rate": rate, "clients": ()} for rate in (0, 10)]
    rows = GROWTH["table"](GROWTH["taken"](found, {"rests": former})).splitlines()
    assert rows[2:4] == [
        "| 8, none | `async for` | 0.041 |  | 0.12 | 50 |",
        "| 250 in 25 topics, 1,000 | `async for` | 0.041 | 1.2; 2.1 | 0.12 | 50 |",
    ]
    assert "From the start of a process to its first message: confluent-kafka 0.25 s." in rows


def test_lines_that_were_not_measured_stay() -> None:
    rest = {"partitions": 8, "topics": 1, "rate": 10, "clients": []}
    found = msgspec.json.decode(msgspec.json.encode(report("3.9.1", 4, (), ())))
    assert GROWTH["taken"](found, {"rests": [rest], "first": {"a": 1.0}})["rests"] == [rest]
