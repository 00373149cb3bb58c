"""The pages for users, as far as no server is needed: settings, links, and that every page can be found."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kzconsumer.brokers.protocol.primitives import MAX_RESPONSE
from kzconsumer.brokers.transport import MAX_FIRST_RESPONSE as FIRST_RESPONSE
from kzconsumer.cli.main import whole_parser
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.link import MAX_FRAME

ROOT = Path(__file__).parents[3]
PAGES = ["README.md", *sorted(f"docs/{each.name}" for each in (ROOT / "docs").glob("*.md"))]
INTERNALS = sorted(f"docs/internals/{each.name}" for each in (ROOT / "docs" / "internals").glob("*.md"))
PAGES += [
    *INTERNALS,
    "kzconsumer/README.md",
    "systemd/README.md",
    "plugins/files/README.md",
    "plugins/spark/README.md",
    "plugins/sticky/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^(<!-- not run here: [^\n]+-->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=(?:'[^']*'|\S*) )*(?:timeout \S+ )?kzconsumer (.+)$")
_EXAMPLE = re.compile(r'^\[project.entry-points."kzconsumer.commands"\]\n(\w+) = ', re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#]+)\)")
REQUIRED = {"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "orders"}, "sink": {"plugin": "callable"}}


def blocks(page: str) -> list[tuple[str, str, str]]:
    """The blocks of a page: the comment that says why one is not run, its language, its text."""
    return _FENCE.findall((ROOT / page).read_text())


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


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 132


def test_settings_are_shown() -> None:
    assert {page for page, _ in settings_shown()} >= {"README.md", "docs/security.md", "plugins/files/README.md"}


@pytest.mark.parametrize("page", PAGES)
def test_links_have_targets(page: str) -> None:
    links = [link for link in _LINK.findall((ROOT / page).read_text()) if "://" not in link]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_every_page_is_reachable_from_the_readme(page: str) -> None:
    linked, design = (_LINK.findall((ROOT / each).read_text()) for each in ("README.md", "kzconsumer/README.md"))
    assert f"../{page}" in design if page in INTERNALS else page in linked


def test_the_pages_for_developers_are_short() -> None:
    """The facts of one place stand there as a comment."""
    longest = {"kzconsumer/README.md": 1200, "tests/README.md": 700} | dict.fromkeys(INTERNALS, 1400)
    assert [each for each, most in longest.items() if len((ROOT / each).read_text().split()) > most] == []
    site = (ROOT / "docs" / "site" / "mkdocs.yml").read_text()
    assert [each for each in INTERNALS if f": {each.removeprefix('docs/')}\n" not in site] == []


TO_BE_RUN = ("console", "ini", "sh")
"""Blocks in these languages are run, or read by their program."""

RUN_BY = {
    ("README.md", "console"): "core/spark/test_tutorial.py",
    ("README.md", "sh"): "core/spark/test_tutorial.py",
    ("docs/consume.md", "console"): "tools/servers/test_docs_commands.py",
    ("docs/groups.md", "console"): "tools/servers/test_docs_commands.py",
    ("docs/installation.md", "sh"): "core/plain/test_install.py",
    ("docs/migration.md", "console"): "core/original/test_migration.py",
    ("docs/monitoring.md", "console"): "core/servers/test_status.py",
    ("docs/offsets.md", "console"): "tools/servers/test_docs_commands.py",
    ("docs/plugins.md", "console"): "core/spark/test_tutorial.py",
    ("docs/plugins.md", "sh"): "core/spark/test_tutorial.py",
    ("docs/scheduled-jobs.md", "ini"): "core/plain/test_systemd_units.py",
    ("docs/spark-proof.md", "console"): "tools/spark/test_sink_verify.py",
    ("docs/spark-source.md", "sh"): "tools/spark/test_moved_offsets.py",
    ("docs/topics.md", "console"): "tools/servers/test_admin_controllers.py",
    ("docs/tutorial.md", "console"): "core/spark/test_tutorial.py",
    ("docs/tutorial.md", "sh"): "core/spark/test_tutorial.py",
}
"""The test that reads the blocks of a page in one language."""


def test_every_block_that_can_be_run_has_a_test_that_runs_it() -> None:
    """A block without a test says so in a comment above it."""
    found = {(page, language) for page in PAGES for marked, language, _ in blocks(page) if not marked}
    assert {(page, language) for page, language in found if language in TO_BE_RUN} == set(RUN_BY)


@pytest.mark.parametrize(("page", "test"), sorted({(page, test) for (page, _), test in RUN_BY.items()}))
def test_a_test_that_runs_a_page_opens_it(page: str, test: str) -> None:
    """A docstring or a comment that names the page does not count."""
    nodes = ast.walk(ast.parse((ROOT / "tests" / test).read_text()))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert texts & {page, Path(page).name}


@pytest.mark.parametrize("page", PAGES)
def test_programs_and_scripts_are_well_formed(page: str) -> None:
    for marked, language, text in blocks(page):
        if language == "python" and not marked:
            compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
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


def test_the_types_that_the_reference_shows_exist() -> None:
    """Of the JSON of each command; the site is built by longer tests."""
    shown = runpy.run_path(str(ROOT / "docs" / "site" / "reference.py"))["RESULTS"]
    for command, place in shown.items():
        module, _, name = place.partition(":")
        assert hasattr(importlib.import_module(f"kzconsumer_tools.{module}"), name), f"{command}: {place}"


def test_the_reference_needs_only_what_the_environment_of_the_site_has() -> None:
    """It is read and imported without pyarrow, for instance; ruff makes signatures that editors show (test_site.py)."""
    site = (ROOT / "docs" / "site" / "requirements.txt").read_text().split("\n")
    assert "ruff" in site
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    absent = {re.split("[=><]", each)[0] for each in needed} - set(site)
    assert "pyarrow" in absent
    made = subprocess.run(
        [sys.executable, "-c", _REFERENCE, str(ROOT / "docs" / "site"), *absent],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


_REFERENCE = """
import sys

class Absent:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ImportError(name)

sys.meta_path.insert(0, Absent)
sys.path.insert(0, sys.argv[1])
import reference
for page in ("command_line", "json_results", "python_api", "plugin_api"):
    assert getattr(reference, page)()
"""
