"""One slice of fuzzing in a process of its own, which ends at an access outside its memory: `python -m
tests.fuzz.slices`.

Both `make fuzz` and the tests run slices; a slice is repeated by its kind, cases and seed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import sanitized

ROOT = Path(__file__).parents[2]
KINDS = ("limits", "record-sets", "responses")
"""Of `limits` the cases are always the same, and all of them."""
SHOWN = 3


class Outcome(NamedTuple):
    misreads: list[str]
    """The first few; `kinds` has their number."""
    kinds: Counter[str]
    crash: str | None
    """How the process ended, when it did not end well."""


def run_slice(
    kind: str, cases: int, seed: int, *, variables: Mapping[str, str] | None = None, limit: float = 600.0
) -> Outcome:
    """Run it in a child process, with more environment variables, and wait for its end."""
    environment = os.environ | dict(variables or {})
    command = [sys.executable, "-m", "tests.fuzz.slices", kind, str(cases), str(seed)]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return Outcome([], Counter(), f"no end after {limit:.0f} s: {' '.join(command[1:])}")
    if done.returncode != 0:
        end = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit status {done.returncode}"
        return Outcome([], Counter(), f"{end}: {' '.join(command[1:])}\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    return Outcome(answer["misreads"], Counter(answer["kinds"]), None)


def main(kind: str, cases: str, seed: str) -> None:
    sanitized.use()
    if kind == "limits":
        from tests.fuzz import record_sets

        record_sets.guard_bodies()
        found, kinds = record_sets.differences_at_limits(record_sets.decode_unchecked)
    elif kind == "record-sets":
        from tests.fuzz import record_sets

        record_sets.guard_bodies()
        found, kinds = record_sets.differences(record_sets.decode_unchecked, int(cases), int(seed))
    else:
        from tests.fuzz import responses

        found, kinds = responses.differences(responses.decode, int(cases), int(seed))
    kinds["misreads"] += len(found)
    print(json.dumps({"misreads": found[:SHOWN], "kinds": kinds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
