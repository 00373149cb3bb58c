"""Looks for schedules of faults under which a simulated group breaks a promise.

    python -m tests.simulate --minutes 60
    python -m tests.simulate --seed 4711

The first runs one random seed after the other; the second repeats one, and prints the smallest schedule that fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback

from tests.simulate.search import SCHEDULES, SEEDS, random_seed, search

HASH_SEED = "PYTHONHASHSEED"
PROGRESS_EVERY = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description="Simulated groups, random faults.")
    parser.add_argument("--minutes", type=float, default=60.0, help="processor time to look for (default: 60)")
    parser.add_argument("--seed", type=int, help="repeat this seed, and only this one, with the smallest schedule")
    parser.add_argument("--first", type=int, help="the first of the seeds (default: a random one)")
    asked = parser.parse_args()
    first = random_seed() if asked.first is None else asked.first
    if HASH_SEED not in os.environ:  # the order of sets is part of a schedule
        again = [sys.executable, "-m", "tests.simulate", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | {HASH_SEED: str(first % SEEDS)})
    if asked.seed is not None:
        return failed(asked.seed, shrink=True)
    return look(first, asked.minutes)


def look(first: int, minutes: float) -> int:
    """Seed after seed until the time is over; the exit status."""
    print(f"seeds from {first} on, {SCHEDULES} schedules each", flush=True)
    began = reported = time.process_time()
    number = 0
    while (now := time.process_time()) - began < minutes * 60:
        if now - reported > PROGRESS_EVERY:
            reported = now
            print(f"{number * SCHEDULES} schedules in {now - began:.0f} s of processor time", flush=True)
        if failed((first + number) % SEEDS, shrink=False):
            return 1
        number += 1
    print(f"{number * SCHEDULES} schedules, nothing found")
    return 0


def failed(seed: int, *, shrink: bool) -> int:
    try:
        search(seed, shrink=shrink)
    except Exception:
        traceback.print_exc(file=sys.stdout)
        again = f"{HASH_SEED}={os.environ[HASH_SEED]} python -m tests.simulate --seed {seed}"
        print(f"found with seed {seed}; again with this commit, and the smallest schedule: {again}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
