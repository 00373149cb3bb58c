"""The command `kzconsumer` in a test without an event loop, and the least configuration of a daemon."""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import NamedTuple, cast

from kzconsumer.cli.main import main

GOOD = """
[zookeeper]
connect = "127.0.0.1:2181"
[group]
id = "orders"
[subscription]
topics = { orders = 1 }
[sink]
plugin = "jsonlines"
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def kzconsumer(*words: str) -> Done:
    """The command in this process, which saves a second of imports."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main(list(words))
        except SystemExit as ended:  # argparse
            status = cast(int, ended.code)
    return Done(status, out.getvalue(), err.getvalue())


def kzconsumer_process(*words: str) -> Done:
    command = [sys.executable, "-m", "kzconsumer", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return Done(done.returncode, done.stdout, done.stderr)
