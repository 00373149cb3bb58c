"""Completion and the manual page are complete: they are generated from the parsers."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer.cli.arguments import Parser
from kzconsumer.cli.main import main, whole_parser
from kzconsumer_tools.commands.completion import SHELLS
from tests.support.pages import ROOT
from tests.support.programs import FISH, GROFF, ZSH, Program, need

Words = tuple[str, ...]


def commands(parser: argparse.ArgumentParser, at: Words = ()) -> Iterator[tuple[Words, argparse.ArgumentParser]]:
    """Every verb, and every action of a verb, with the words that lead there."""
    yield at, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from commands(inner, (*at, name))


def test_every_help_is_complete_and_has_examples_that_can_be_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the parser that the command uses: an option that was renamed fails here. It fits a terminal's 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    whole = whole_parser()
    known = list(commands(whole))
    assert len(known) > 40
    for words, parser in known:
        assert isinstance(parser, Parser)
        assert parser.description, words
        assert all(each.help for each in parser._actions if not each.choices or each.option_strings), words
        assert parser.examples, words
        text = parser.format_help()
        assert max(map(len, text.splitlines())) <= 80, words
        shown = text.partition("\nexamples:\n")[2].replace("\\\n", "")
        assert shlex.split(shown) == shlex.split("\n".join(parser.examples)), words
        for line in parser.examples:
            program, *given = shlex.split(re.split(r" [|<>] ", line)[0])
            assert program == "kzconsumer"
            assert whole.parse_args(given).verb == (words or given)[0], line


def test_the_help_has_every_exit_status() -> None:
    sources = (file.read_text() for folder in ("kzconsumer", "plugins") for file in (ROOT / folder).rglob("*.py"))
    statuses = {number for text in sources for number in re.findall(r"^EXIT_\w+ = (\d+)", text, re.MULTILINE)}
    assert len(statuses) > 5
    assert set(re.findall(r"\d+", whole_parser().epilog or "")) == {"0"} | statuses


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {word for action in parser._actions for word in action.option_strings if action.help != argparse.SUPPRESS}


def inner(parser: argparse.ArgumentParser) -> set[str]:
    return {name for each in parser._actions if isinstance(each, argparse._SubParsersAction) for name in each.choices}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_bash_completes_every_verb_and_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A real bash: what it offers for every command after nothing and after a dash."""
    known = list(commands(whole_parser()))
    assert len(known) > 10
    script = [printed(capsys, "completion", "bash")]
    for words, _ in known:
        for begun in ("", "-"):
            line = " ".join(("kzconsumer", *words, f"'{begun}'"))
            script.append(f"COMP_WORDS=({line}); COMP_CWORD={len(words) + 1}; COMPREPLY=(); _shtab_kzconsumer")
            script.append('printf "%s " "${COMPREPLY[@]}"; echo')
    (tmp_path / "script").write_text("\n".join(script))
    done = subprocess.run(
        ["bash", tmp_path / "script"], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True
    )
    assert done.stderr == ""
    offered = [set(line.split()) for line in done.stdout.splitlines()]
    assert len(offered) == 2 * len(known)
    for (words, parser), nothing, dash in zip(known, offered[::2], offered[1::2], strict=True):
        assert inner(parser) <= nothing, words
        assert options(parser) == dash, words


def test_bash_completes_files_and_choices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "group.toml").touch()
    script = (
        printed(capsys, "completion", "bash")
        + """
        offer() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_kzconsumer; echo "${COMPREPLY[@]}"; }
        offer kzconsumer run gr
        offer kzconsumer check-config --config gr
        offer kzconsumer check-config -o ''
        offer kzconsumer completion ''
        """
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == ["group.toml", "group.toml", "toml json", "bash zsh fish groups topics contexts"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_completes_every_verb_and_option(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    text = printed(capsys, "completion", shell)
    for words, parser in commands(whole_parser()):
        for word in (*words, *options(parser)):
            assert word.lstrip("-") in text, (words, word)


@pytest.mark.parametrize("shell", [ZSH, FISH], ids=lambda shell: shell.title)
def test_a_shell_can_parse_its_script(capsys: pytest.CaptureFixture[str], tmp_path: Path, shell: Program) -> None:
    found = need(shell)
    (tmp_path / "script").write_text(printed(capsys, "completion", shell.title))
    subprocess.run([found, "-n", tmp_path / "script"], check=True, timeout=60)


def test_the_manual_has_every_verb_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "manual").replace("\\-", "-").replace("\\fR", "").replace("\\fB", "").replace("\\fI\\,", "")
    assert text.startswith('.TH KZCONSUMER "1"')
    sections = dict(part.split("'", 2)[1:] for part in text.split(".SH COMMAND ")[1:])
    for words, parser in commands(whole_parser()):
        section = sections[f"kzconsumer {' '.join(words)}"] if words else text.partition(".SH COMMAND")[0]
        for word in options(parser) - {"-h", "--help"}:
            assert word in section, (words, word)


def test_the_manual_page_can_be_formatted(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [need(GROFF), "-man", "-Tutf8", "-ww", "-P-c"],
        input=printed(capsys, "manual"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "KZCONSUMER(1)" in re.sub(r".\x08", "", done.stdout)  # where headings are bold, each letter is struck twice
    assert done.stderr == ""


WITHOUT_DECODER = """
import sys
sys.modules["kzconsumer.records._native"] = None
from importlib.metadata import entry_points
from kzconsumer_tools.commands import manual
print(manual.page([each.load() for each in entry_points(group="kzconsumer.commands")]))
print(sorted({"aiohttp", "confluent_kafka", "pyarrow", "rich"} & sys.modules.keys()))
"""


def test_the_manual_is_made_in_a_clone_where_nothing_is_compiled() -> None:
    """`pip install ./plugins/tools` makes it from the sources beside it, and help loads nothing heavy."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_DECODER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(".TH KZCONSUMER")
    assert done.stdout.endswith("\n[]\n")
