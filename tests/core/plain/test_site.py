"""The site of docs/: it is built without a warning, needs nothing from other hosts, and its reference is complete.

In `make test`, `test_pages.py` and `test_options.py` read the pages themselves.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kzconsumer
from kzconsumer.cli.main import whole_parser
from kzconsumer.settings.settings import layers_of
from tests.support.extent import only_nightly
from tests.support.installing import ROOT

pytestmark = [pytest.mark.long, only_nightly]

FOREIGN = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ROOT / "docs/site/mkdocs.yml", "-d", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_of_the_directory_is_included(site: Path) -> None:
    """Also in the navigation."""
    index = (site / "index.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / page.with_suffix(".html").name).is_file()
        assert f'href="{page.stem}.html"' in index, page.name


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    """No fonts, scripts, styles or images: it can be read without a network and does not reveal its readers."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert {page.name: FOREIGN.findall(page.read_text()) for page in pages if FOREIGN.search(page.read_text())} == {}
    styles = "".join(each.read_text() for each in site.rglob("*.css"))
    assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", styles)


def test_the_reference_has_all_settings(site: Path, tmp_path: Path) -> None:
    text = (site / "settings.html").read_text()
    reference = layers_of(ROOT / "config" / "group.reference.toml").tables
    keys = [(table, key) for table, keys in reference.items() if isinstance(keys, dict) for key in keys]
    assert len(keys) > 30
    for table, key in keys:
        assert f'id="{table}-{key}"' in text or f"[{table}.{key}]" in text, (table, key)


def test_signatures_are_those_that_editors_show(site: Path) -> None:
    """A context manager, words in place of the alias for them, and types in place of what a constructor assigns."""
    shown = re.sub(r"<[^>]+>", "", (site / "python-api.html").read_text())
    connect = " ".join(html.unescape(shown[shown.index("connect(\n") :][:700]).split())
    assert connect.startswith("connect( settings: Settings | str | PathLike[str] | None = None, *, zookeeper: ")
    assert 'acknowledge: Literal[ "implicit", "explicit" ] = "implicit", ) -> AbstractAsyncContextManager[' in connect
    assert set(re.findall(r"^(\w+) = .+", shown, re.MULTILINE)) <= {"pattern"}  # of the class
    assert "headers: Headers" in shown


def test_the_reference_has_all_verbs_and_all_names(site: Path) -> None:
    command_line = (site / "command-line.html").read_text()
    (verbs,) = [action.choices for action in whole_parser()._actions if action.dest == "verb"]
    assert verbs
    assert all(f'id="kzconsumer-{verb}"' in command_line for verb in verbs)
    results = (site / "json.html").read_text()
    assert all(
        f"<code>{field}</code>" in results for field in ("leader_address", "records_in", "isr", "recreated_topic")
    )
    python = (site / "python-api.html").read_text()
    assert all(f".{name}</" in python or f">{name}<" in python for name in kzconsumer.__all__ if name[0] != "_")
    first = ("consumer.connect", "consumer.ConsumerConnector", "errors.KzConsumerError", "errors.BrokerError")
    places = [python.index(f'id="kzconsumer.{each}"') for each in first]
    assert sorted(places) == places
    events = (site / "log-events.html").read_text()
    assert all(f"<td>{event}</td>" in events for event in ("rebalanced", "sink ready", "stopped"))
