"""Standard output that is full, closed or of ASCII: what every verb prints about itself."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer.cli.arguments import inner_parsers
from kzconsumer.cli.main import whole_parser
from kzconsumer_tools.commands.completion import SHELLS
from tests.support.extent import extent
from tests.support.odd_outputs import Kind, run_all

WITHOUT_SERVERS = [
    ["plugins"],
    ["manual"],
    ["context", "list"],
    *(["completion", shell] for shell in SHELLS),
    ["--version"],
]
KINDS: tuple[Kind, ...] = "full", "closed", "ascii", "all closed"


def verbs(parser: argparse.ArgumentParser | None = None) -> Iterator[list[str]]:
    """The words of every verb and every action of it."""
    for inner in inner_parsers(parser or whole_parser()):
        deeper = list(verbs(inner))
        yield from deeper or [inner.prog.split()[1:]]


def test_no_verb_fails_to_say_that_its_output_cannot_be_written(tmp_path: Path) -> None:
    commands = [*([*words, "--help"] for words in verbs()), *WITHOUT_SERVERS]
    assert len(commands) > 40
    # An output that cannot be written is found in one place: of every fourth verb. Each verb has its own characters.
    tried = [(kind, words) for kind in KINDS for words in (commands if kind == "ascii" else commands[:: extent(4, 1)])]
    for (kind, words), done in zip(tried, run_all(tried, tmp_path, {"XDG_CONFIG_HOME": str(tmp_path)}), strict=True):
        about = f"{kind}: {' '.join(words)}: {done}"
        if kind == "ascii":
            assert (done.status, done.err, done.out.isascii(), done.out != "") == (0, "", True, True) or (
                words == ["context", "list"]
            ), about
        else:
            assert done.status == 74, about
            reason = {"full": "No space left on device", "closed": "Bad file descriptor"}.get(kind)
            assert done.err == (f"kzconsumer: standard output: {reason}\n" if reason else ""), about


@pytest.mark.parametrize(
    ("shell", "status", "err"),
    [
        ("{} >/dev/full", 74, "kzconsumer: standard output: No space left on device\n"),
        ("{} >&-", 74, "kzconsumer: standard output: Bad file descriptor\n"),
        ("{} >&- 2>&-", 74, ""),
        ("{} | true; exit ${{PIPESTATUS[0]}}", 1, ""),
        ("{} no 2>/dev/full", 2, ""),
        ("PYTHONIOENCODING=ascii {} >/dev/null", 0, ""),
    ],
)
def test_a_whole_process(shell: str, status: int, err: str) -> None:
    """The forks of the test above stand for processes such as these."""
    line = shell.format(f"{sys.executable} -m kzconsumer plugins").replace("{{", "{").replace("}}", "}")
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ, check=False)
    assert (done.returncode, done.stderr) == (status, err), done
