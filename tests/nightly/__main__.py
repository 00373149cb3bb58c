"""Runs the parts of a nightly run one after the other: `python -m tests.nightly --help`, `make nightly`.

The output of each is kept in a file. Ends with a table of all parts, and with status 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.nightly.parts import Part, parts

LAST_LINES = 30
"""Of the output of a part that failed, which are shown at once."""
GRACE = 60.0
"""Seconds that a part has to end what it has started."""


@dataclass(frozen=True)
class Result:
    part: Part
    outcome: str
    minutes: float
    log: Path

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PART", help="only these; default: all")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    parser.add_argument("--logs", type=Path, help="folder for the output of the parts; default: a temporary one")
    options = parser.parse_args(arguments)
    every = parts(options.seed)
    if unknown := set(options.names) - {part.name for part in every}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in every)}")
    logs = options.logs or Path(tempfile.mkdtemp(prefix="kzconsumer-nightly-"))
    chosen = [part for part in every if not options.names or part.name in options.names]
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"seed {options.seed}; the output is in {logs}")
    return run(chosen, logs, console)


def run(chosen: Iterable[Part], logs: Path, console: Console) -> int:
    """One part after the other; the exit status."""
    logs.mkdir(parents=True, exist_ok=True)
    results = []
    for part in chosen:
        console.print(f"{part.name}: begun, {part.minutes:g} minutes at most")
        result = run_part(part, logs / f"{part.name.replace(' ', '-')}.log")
        results.append(result)
        console.print(f"{part.name}: {result.outcome} after {result.minutes:.1f} minutes")
        if not result.passed:
            lines = result.log.read_text(errors="replace").splitlines()
            console.print("\n".join(lines[-LAST_LINES:]), markup=False)
    console.print(table(results))
    return 0 if all(result.passed for result in results) else 1


def run_part(part: Part, log: Path) -> Result:
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            part.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=part.variables or None,
            start_new_session=True,
        )
        try:
            status = process.wait(part.minutes * 60)
            outcome = "passed" if status == 0 else f"failed ({status})"
        except subprocess.TimeoutExpired:
            outcome = "too slow"
        finally:
            end(process)  # also when this program is interrupted
    return Result(part, outcome, (time.monotonic() - began) / 60, log)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process, if it has not ended, and everything that it has started and left."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table(results: Iterable[Result]) -> Table:
    shown = Table("part", "result", "minutes", "seed", "output", title="nightly")
    for each in results:
        seed = "" if each.part.seed is None else str(each.part.seed)
        shown.add_row(each.part.name, each.outcome, f"{each.minutes:.1f}", seed, str(each.log))
    return shown


if __name__ == "__main__":
    sys.exit(main())
