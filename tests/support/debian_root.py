"""The root directory of another Debian release, for a systemd of another version than this machine's."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from kzconsumer_sandbox.servers.jars import cache_folder
from tests.support.extent import extent
from tests.support.programs import DEBOOTSTRAP, need

_ALL = ["trixie"]
RELEASES = _ALL if os.environ.get("KZCONSUMER_SYSTEMD") else extent([], _ALL)
"""`make test-systemd` has them all; `make test` has only this machine's own systemd."""


def debian_root(release: str) -> Path:
    """Downloaded in a minute if necessary, 400 MB. With the libraries that a Python needs."""
    folder = cache_folder() / "roots" / release
    if not folder.exists():
        program = need(DEBOOTSTRAP)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            root = Path(temporary, release)
            words = (program, "--variant=minbase", "--include=systemd,python3", release, root)
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            assert done.returncode == 0, done.stdout[-2000:]
            root.rename(folder)
    return folder
