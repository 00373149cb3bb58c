"""What the pages for users show without a server to show it on: settings, links, and that every page can be found."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kzconsumer.config import Settings

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{each.name}" for each in (ROOT / "docs").glob("*.md"))]
PAGES += ["systemd/README.md", "plugins/spark/README.md", "plugins/sticky/README.md", "CHANGELOG.md"]
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#]+)\)")
REQUIRED = {"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "orders"}, "sink": {"plugin": "callable"}}


def settings_shown() -> list[tuple[str, str]]:
    shown = [(page, block) for page in PAGES for block in _TOML.findall((ROOT / page).read_text())]
    return [each for each in shown if "[project" not in each[1]]


def with_required(tables: dict[str, object]) -> dict[str, object]:
    """What a page leaves out of a table, or of the file, that has to be there."""
    filled = {name: table | tables.get(name, {}) for name, table in REQUIRED.items()}  # type: ignore[operator]
    return tables | filled


@pytest.mark.parametrize(("page", "block"), settings_shown())
def test_settings_are_accepted_as_printed(page: str, block: str) -> None:
    Settings.from_dict(with_required(tomllib.loads(block)), source=page)
    commented = re.sub(r"^#(\w+ = )", r"\1", block, flags=re.MULTILINE)
    Settings.from_dict(with_required(tomllib.loads(commented)), source=page)


def test_settings_are_shown() -> None:
    assert {page for page, _ in settings_shown()} >= {"README.md", "docs/security.md", "docs/archive.md"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = [link for link in _LINK.findall((ROOT / page).read_text()) if "://" not in link]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_every_page_is_linked_from_the_first(page: str) -> None:
    assert page in _LINK.findall((ROOT / "README.md").read_text())
