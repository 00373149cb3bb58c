"""README.md, docs/tutorial.md and docs/plugins.md are executed: files are saved, commands run in order in one shell.

The output that a page prints for a command (`$ ...`) must appear; `...` stands for lines that vary or do not matter.
The environment is that of the tests, with everything installed. `make test` follows README.md alone, and the Spark part
of the tutorial runs in `make test-install` only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.support.extent import NIGHTLY
from tests.support.installing import ROOT, shell_commands
from tests.support.spark_fixtures import INTERPRETED

WHOLE = bool(os.environ.get("KZCONSUMER_INSTALL"))
nightly_or_whole = pytest.mark.skipif(not WHOLE and NIGHTLY is None, reason="make test-install, make thorough")
_BLOCK = re.compile(r"(<!--[^\n]*-->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = "\x1e"
_END = 'for each in $(jobs -p); do kill "$each"; done 2>/dev/null; kzconsumer sandbox down >/dev/null 2>&1 || true'


def tutorial() -> str:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    if WHOLE:
        return page
    before, spark, after = re.split(r"^## Spark\n|(?=^## The end\n)", page, flags=re.MULTILINE)
    assert "kzconsumer" in spark
    return before + after


def followed(page: str, folder: Path) -> tuple[str, list[tuple[str, str]]]:
    """Saves the page's files; returns the script of all its commands, and each command with its expected output."""
    script, printed = [f"set -eu\ntrap '{_END}' EXIT"], list[tuple[str, str]]()
    for marked, language, text in _BLOCK.findall(page):
        if marked:
            continue
        if language in ("python", "toml"):
            name = text.partition("\n")[0].removeprefix("# ")
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        elif language == "sh":
            script.append(text)
        else:
            assert language == "console", language
            for command, _, answer in (
                each.partition("\n") for each in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
            ):
                script.append(f"printf '{_MARK}'\n{command}\nprintf '{_MARK}'")
                printed.append((command, answer))
    return "\n".join(script), printed


@pytest.mark.timeout(600)
def test_the_readme_works_as_printed(tmp_path: Path) -> None:
    follow((ROOT / "README.md").read_text(), tmp_path)


@nightly_or_whole
@pytest.mark.timeout(600)
def test_writing_a_plugin_works_as_printed(tmp_path: Path) -> None:
    follow((ROOT / "docs" / "plugins.md").read_text(), tmp_path)


@nightly_or_whole
@pytest.mark.timeout(600)
def test_the_tutorial_works_as_printed(tmp_path: Path) -> None:
    follow(tutorial(), tmp_path)


def follow(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "tutorial"
    folder.mkdir()
    script, printed = followed(page, folder)
    assert len(printed) >= 4
    commands = shell_commands(tmp_path / "env")
    known = {name: text for name, text in os.environ.items() if not name.startswith(("KZCONSUMER", "PYTHON"))}
    known |= {"PATH": f"{commands}{os.pathsep}{known['PATH']}", "XDG_STATE_HOME": str(tmp_path / "state")}
    known["SPARK_CONF_DIR"] = str(tmp_path)
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in INTERPRETED.items()))
    with (tmp_path / "out").open("w+") as out, (tmp_path / "err").open("w+") as err:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=known, stdout=out, stderr=err, text=True, start_new_session=True
        )
        try:
            status = shell.wait(540)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGTERM)
            status = shell.wait(30)
    said = (tmp_path / "out").read_text()
    logs = "\n".join(each.read_text()[-1500:] for each in [tmp_path / "err", *folder.glob("*.log")])
    assert status == 0, f"{said[-3000:]}\n{logs}"
    answers = said.split(_MARK)[1::2]
    assert len(answers) == len(printed)
    for (command, expected), answer in zip(printed, answers, strict=True):
        expected = expected.replace("[", "[[]").replace("/tmp/tutorial", "*")  # may be too long to be shown
        lines = ["*" if line == "..." else line for line in expected.splitlines()]
        assert fnmatchcase("\n".join(answer.splitlines()), "\n".join(lines)), f"$ {command}\n{answer}"
