"""The command `kzconsumer` in this process, which saves a second of imports; the least configuration of a daemon."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, NamedTuple, cast

import pytest

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
_PROGRESS = re.compile(r"kzconsumer: [a-z ]+: \d[\d,]* (of [\d,]+, |s$|min )")


class Done(NamedTuple):
    status: int
    out: str
    err: str


class CommandLine:
    """Beside the test's event loop: `await kzconsumer("groups", "list")`. Every command gets the options given here."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *options: str) -> None:
        self.capsys = capsys
        self._options = options

    async def __call__(self, *words: str) -> Done:
        self.capsys.readouterr()
        status = await asyncio.to_thread(main, [*words, *self._options])
        return Done(status, *self.capsys.readouterr())

    async def json(self, *words: str, status: int = 0) -> Any:
        """The output of `-o json`; fails unless the command ended with this status and without errors.

        What takes seconds, as anything may on a loaded machine, says how far it is.
        """
        done = await self(*words, "-o", "json")
        errors = [line for line in done.err.splitlines() if not _PROGRESS.match(line)]
        assert (done.status, errors) == (status, []), done
        return json.loads(done.out)


def kzconsumer(*words: str) -> Done:
    """In a test without an event loop. Also what argparse ends."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main(list(words))
        except SystemExit as ended:
            status = cast(int, ended.code)
    return Done(status, out.getvalue(), err.getvalue())


def kzconsumer_process(*words: str) -> Done:
    """In a process of its own."""
    command = [sys.executable, "-m", "kzconsumer", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return Done(done.returncode, done.stdout, done.stderr)
