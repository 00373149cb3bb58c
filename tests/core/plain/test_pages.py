"""The pages for users, as far as no server is needed: settings, links, and that every page can be found."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from kzconsumer.brokers.protocol.frames import MAX_RESPONSE
from kzconsumer.brokers.transport import MAX_FIRST_RESPONSE as FIRST_RESPONSE
from kzconsumer.cli.main import whole_parser
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.link import MAX_FRAME

ROOT = Path(__file__).parents[3]
PAGES = ["README.md", *sorted(f"docs/{each.name}" for each in (ROOT / "docs").glob("*.md"))]
PAGES += [
    "systemd/README.md",
    "plugins/files/README.md",
    "plugins/spark/README.md",
    "plugins/sticky/README.md",
    "CHANGELOG.md",
]
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^(<!-- not run here: [^\n]+-->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=(?:'[^']*'|\S*) )*(?:timeout \S+ )?kzconsumer (.+)$")
_EXAMPLE = re.compile(r'^\[project.entry-points."kzconsumer.commands"\]\n(\w+) = ', re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#]+)\)")
REQUIRED = {"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "orders"}, "sink": {"plugin": "callable"}}


def settings_shown() -> list[tuple[str, str]]:
    shown = [(page, block) for page in PAGES for block in _TOML.findall((ROOT / page).read_text())]
    return [each for each in shown if "[project" not in each[1]]


def with_required(tables: dict[str, object]) -> dict[str, object]:
    """What a page omits from a table, or from the file, although it is required."""
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
def test_links_have_targets(page: str) -> None:
    links = [link for link in _LINK.findall((ROOT / page).read_text()) if "://" not in link]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_every_page_is_reachable_from_the_readme(page: str) -> None:
    assert page in _LINK.findall((ROOT / "README.md").read_text())


TO_BE_RUN = ("console", "ini", "sh")
"""Blocks of these languages are run, or read by what they are for; a test that does it names their page."""


def named_by_a_test(page: str) -> bool:
    tests = [each for each in (ROOT / "tests").rglob("test_*.py") if each != Path(__file__)]
    return any(page in each.read_text() or Path(page).name in each.read_text() for each in tests)


@pytest.mark.parametrize("page", PAGES)
def test_every_code_block_is_tested_or_says_why_not(page: str) -> None:
    """By its language; settings are loaded above. A block without a test says so in a comment above it."""
    for marked, language, text in _FENCE.findall((ROOT / page).read_text()):
        if language == "python" and not marked:
            compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if language in TO_BE_RUN and not marked:
            assert named_by_a_test(page), f"{page}: no test runs\n{text}"
        if language == "sh":
            subprocess.run(["bash", "-n", "-c", text], check=True)


def commands_shown() -> list[tuple[str, str]]:
    lines = [(page, line) for page in PAGES for _, _, text in _FENCE.findall((ROOT / page).read_text())
             for line in text.replace("\\\n", " ").splitlines()]  # fmt: skip
    examples = {name for page in PAGES for name in _EXAMPLE.findall((ROOT / page).read_text())}
    found = [(page, match[1]) for page, line in lines if (match := _COMMAND.match(line))]
    return [(page, command) for page, command in found if command.split()[0] not in examples]


def test_every_command_exists() -> None:
    """The parser accepts every command in a page, except those added by an example of a plugin."""
    parser, shown = whole_parser(), commands_shown()
    assert len(shown) > 40
    for page, command in shown:
        reader = shlex.shlex(command, posix=True, punctuation_chars="|&;<>")
        reader.whitespace_split = True
        words: list[str] = []
        for word in reader:
            if set(word) <= set("|&;<>"):
                break
            words.append(word)
        if re.search(r" 2>", command) and words[-1] == "2":  # redirection of errors
            words.pop()
        try:
            parser.parse_args(words)
        except SystemExit:  # the comment says why
            pytest.fail(f"{page}: kzconsumer {command}")


def test_limits_on_the_security_page_match_the_code() -> None:
    page = " ".join((ROOT / "docs" / "security.md").read_text().split())
    assert f"a response of up to {MAX_RESPONSE >> 30} GiB ({FIRST_RESPONSE >> 20} MiB before" in page
    assert f"A frame of up to {MAX_FRAME >> 20} MiB is read" in page
