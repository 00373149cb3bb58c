"""The command line run in this process, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NamedTuple

import pytest

from kzconsumer.cli.main import main

_PROGRESS = re.compile(r"kzconsumer: [a-z ]+: \d[\d,]* (of [\d,]+, |s$|min )")


class Done(NamedTuple):
    status: int
    out: str
    err: str


class CommandLine:
    """`await kzconsumer("groups", "list")`; every command gets the options given here as well."""

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
