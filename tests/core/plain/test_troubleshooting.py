"""docs/troubleshooting.md has every warning and error of the code, and every alert has a place there."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
import yaml

from kzconsumer.cli.main import whole_parser
from kzconsumer.lag.partition import UNASKED
from kzconsumer.status.partition_health import Hindrance

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ALERTS = ROOT / "monitoring" / "alerts.yml"
_ROW = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_COMMAND = re.compile(r"^kzconsumer (?:[^#\n]+)|(?<=`)kzconsumer [^`]+(?=`)", re.MULTILINE)
REASONS = {*get_args(Hindrance), *UNASKED} - {"kept by another client"}
"""The rows of the tables of stalls and of unknown lags, which are not events. A member reads its own group only."""


class Code(NamedTuple):
    texts: set[object]
    logged: set[object]
    """The events that are literals, of warnings and errors."""


@cache
def code() -> Code:
    """What the two first tests look for in each file, which is parsed once."""
    texts: set[object] = set()
    logged: set[object] = set()
    for path in [*(ROOT / "kzconsumer").rglob("*.py"), *(ROOT / "plugins").glob("*/kzconsumer_*/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant):
                texts.add(node.value)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("warning", "error", "exception")
                and ast.unparse(node.func.value).endswith("log")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                logged.add(node.args[0].value)
    return Code(texts, logged)


def events_on_the_page() -> set[str]:
    return {event for row in _ROW.findall(PAGE) for event in re.findall(r"`([^`]+)`", row)}


def anchors(page: str) -> set[str]:
    """As both GitHub and the site make them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(page)}


def runbooks() -> dict[str, str]:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return {rule["alert"]: rule["annotations"].get("runbook_url", "") for rule in rules}


def test_every_event_on_the_page_is_one_of_the_code() -> None:
    assert events_on_the_page() - code().texts == set()


def test_every_warning_and_error_and_reason_is_on_the_page() -> None:
    """Whose event is a literal: none of an assigned one may be missing, but a test cannot tell."""
    assert len(code().logged) > 70
    assert (code().logged | REASONS) - events_on_the_page() == set()


@pytest.mark.parametrize(("alert", "url"), runbooks().items())
def test_an_alert_leads_to_a_heading_of_the_page(alert: str, url: str) -> None:
    page, _, anchor = url.partition("#")
    assert page == "troubleshooting.html"
    assert anchor in anchors(PAGE)
    if alert != "KzconsumerErrors":  # its event is in one of the tables
        assert f"Alert `{alert}`" in PAGE


def test_the_command_in_the_rules_makes_their_links_absolute(tmp_path: Path) -> None:
    (command,) = re.findall(r"^# (sed .+)$", ALERTS.read_text(), re.MULTILINE)
    (tmp_path / "alerts.yml").write_text(ALERTS.read_text())
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    rules = yaml.safe_load((tmp_path / "alerts.yml").read_text())["groups"][0]["rules"]
    base = "https://docs.example.com/kzconsumer/"
    assert [rule["annotations"]["runbook_url"] for rule in rules] == [base + url for url in runbooks().values()]


def test_every_command_on_the_page_exists() -> None:
    parser, commands = whole_parser(), _COMMAND.findall(PAGE)
    assert len(commands) >= 8
    for command in commands:
        parser.parse_args(shlex.split(command)[1:])  # exits if it is refused
