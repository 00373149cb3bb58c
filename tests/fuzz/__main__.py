"""`python -m tests.fuzz` (`make fuzz`): everything, with a progress line. Exit status 1 after a crash or a misread.

The decoder is compiled with sanitizers, where the C compiler has them; a report of theirs counts as a crash.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz import guided, sanitized
from tests.fuzz.slices import Outcome, run_slice
from tests.support.programs import CLANG

SLICE = 20_000
SHOW_EVERY = 1.0 if sys.stdout.isatty() else 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Mutated bytes against the decoders.")
    parser.add_argument("--record-sets", type=int, default=2_000_000, help="default: %(default)s")
    parser.add_argument("--responses", type=int, default=500_000, help="default: %(default)s")
    parser.add_argument("--guided", type=int, default=180, help="seconds of libFuzzer; default: %(default)s")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first slice; default: the time")
    parser.add_argument("--plain", action="store_true", help="the decoder as it is installed, without sanitizers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: %(default)s")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.jobs} processes", flush=True)
    wanted = {"limits": 1, "record-sets": options.record_sets, "responses": options.responses}
    with TemporaryDirectory() as folder:
        variables = None if options.plain else sanitized.build(Path(folder))
        if variables is None:
            print("without sanitizers" + ("" if options.plain else ": the C compiler here has none"), flush=True)
        good = [run(kind, cases, options.seed, options.jobs, variables) for kind, cases in wanted.items() if cases > 0]
    if options.guided > 0:
        good.append(run_guided(options.guided, options.seed))
    return 0 if all(good) else 1


def run_guided(seconds: int, seed: int) -> bool:
    """As `run`, by libFuzzer; nothing, with a line that says so, where it is missing."""
    with TemporaryDirectory() as folder:
        variables = guided.build(Path(folder))
        if variables is None:
            print(f"guided: left out, as {CLANG.title} is missing ({CLANG.install})", flush=True)
            return True
        outcome = guided.run(seconds, seed, Path(folder), variables)
    for text in (*outcome.misreads, *([outcome.crash] if outcome.crash else [])):
        print(f"\nguided: {text}", flush=True)
    print(f"guided: {seconds} s; {outcome.kinds['cases']:,} cases, {outcome.kinds['edges']} edges", flush=True)
    return outcome.crash is None and not outcome.misreads


def run(kind: str, cases: int, seed: int, jobs: int, variables: Mapping[str, str] | None) -> bool:
    """All slices of one kind; returns whether they passed."""
    begin = shown = time.monotonic()
    done = crashes = 0
    kinds: Counter[str] = Counter()
    for size, outcome in outcomes(kind, cases, seed, jobs, variables):
        done += size
        kinds += outcome.kinds
        crashes += outcome.crash is not None
        for text in (*outcome.misreads, *([outcome.crash] if outcome.crash else [])):
            print(f"\n{kind}: {text}", flush=True)
        time_now = time.monotonic()
        if time_now - shown >= SHOW_EVERY or done == cases:
            shown = time_now
            left = (time_now - begin) / done * (cases - done)
            line = f"{kind}: {done:,} of {cases:,}, {crashes} crashes, {kinds['misreads']} misreads, {left:.0f} s left"
            print(f"\r{line}  " if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n", flush=True)
    about = ", ".join(f"{number:,} {name}" for name, number in sorted(kinds.items()) if name != "misreads")
    print(f"\n{kind}: {time.monotonic() - begin:.0f} s; {about}", flush=True)
    return crashes == 0 and kinds["misreads"] == 0


def outcomes(
    kind: str, cases: int, seed: int, jobs: int, variables: Mapping[str, str] | None
) -> Iterator[tuple[int, Outcome]]:
    sizes = [min(SLICE, cases - first) for first in range(0, cases, SLICE)]
    with ThreadPoolExecutor(jobs) as pool:
        running = {
            pool.submit(run_slice, kind, size, seed + n, variables=variables): size for n, size in enumerate(sizes)
        }
        for each in as_completed(running):
            yield running[each], each.result()


if __name__ == "__main__":
    sys.exit(main())
