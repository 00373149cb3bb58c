"""Commands run with a standard output that cannot be written, or not in every character.

`python -m tests.support.odd_outputs` reads `[[kind, [word, ...]], ...]` and forks once for each: verbs load in one
process, and each command has descriptors of its own, as a shell would give them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal, NamedTuple

import msgspec

Kind = Literal["full", "closed", "ascii", "all closed"]
LIMIT = 60


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def run_all(
    commands: Sequence[tuple[Kind, Sequence[str]]], folder: Path, environment: Mapping[str, str] | None = None
) -> list[Ended]:
    """How each ended. `out` is empty but for "ascii"."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.odd_outputs", str(folder)],
        input=msgspec.json.encode(commands),
        env={**os.environ, **(environment or {})},
        capture_output=True,
        timeout=LIMIT + 2 * len(commands),
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=list[Ended])


async def odd_outputs(
    commands: Sequence[tuple[Kind, Sequence[str]]], folder: Path, environment: Mapping[str, str] | None = None
) -> list[Ended]:
    """As `run_all`, beside the test's own event loop."""
    return await asyncio.to_thread(run_all, commands, folder, environment)


def _run(kind: Kind, words: Sequence[str], folder: str) -> Ended:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _become(kind, words, folder, out.fileno(), err.fileno())
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return Ended(os.waitstatus_to_exitcode(status), out.read().decode(), err.read().decode())


def _become(kind: Kind, words: Sequence[str], folder: str, out: int, err: int) -> None:
    """The streams as an interpreter makes them at its start, then the command, and its end as an interpreter's."""
    from kzconsumer.cli.main import main

    os.chdir(folder)
    os.dup2(err, 2)
    os.dup2(os.open("/dev/full", os.O_WRONLY) if kind == "full" else out, 1)
    if kind in ("closed", "all closed"):
        os.close(1)
    if kind == "all closed":
        os.close(0)
        os.close(2)
    encoding = "ascii" if kind == "ascii" else "utf-8"
    without = {"closed": ["stdout"], "all closed": ["stdin", "stdout", "stderr"]}.get(kind, [])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream: IO[str] | None = None
        if name not in without:
            errors = "backslashreplace" if name == "stderr" else "strict"
            stream = os.fdopen(number, "w" if number else "r", encoding=encoding, errors=errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    status = 1
    try:
        status = main(list(words))
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except BaseException as error:
            os.write(2, f"Exception ignored in {name}: {error!r}\n".encode())
            status = 120
    os._exit(status)


if __name__ == "__main__":
    import kzconsumer.cli.main
    import kzconsumer.logs.setup

    kzconsumer.cli.main.whole_parser()
    results = [_run(kind, words, sys.argv[1]) for kind, words in json.load(sys.stdin)]
    sys.stdout.buffer.write(msgspec.json.encode(results))
