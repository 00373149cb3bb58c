"""Plants bugs that are chosen at random, and prints how many of them the tests notice: `make audit-tests`.

Each bug is judged by the tests that execute its line, quick ones first, up to the first one that fails. What survives
is written as diffs, to be judged by a person: some bugs change nothing that anyone could notice.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import msgspec
from rich.console import Console

from tests.audit.operators import Mutation
from tests.audit.reach import Reach, recorded
from tests.audit.report import Judged, diffs, table
from tests.audit.rooms import DECODER, bugs_of, rooms
from tests.audit.sample import draw
from tests.mutants.mutant import ROOT
from tests.mutants.tree import Outcome, Tree

console = Console(stderr=True, soft_wrap=True, highlight=False)
#: What judges a bug of the decoder: which tests execute its lines is not recorded.
OF_THE_DECODER = (
    *("records_decode", "records_faults", "records_transactions", "records_foreign", "record_forms", "message"),
    *("protocol_captured", "kafka_stream", "record_fuzz"),
)
#: What else is recorded, since nothing plain executes these statements: tests that start a PostgreSQL, in a second, or
#: share one Spark, which takes eight.
RECORDED = (
    *(f"tests/spark/servers/test_jdbc_{name}.py" for name in ("publication", "holdings")),
    *(f"tests/spark/spark/test_{name}.py" for name in ("spark_columns", "spark_destinations", "jdbc_destination")),
    *(f"tests/spark/spark/test_{name}.py" for name in ("tasks_write", "json_values", "poisoned_rows", "value_matrix")),
)
OF_ALL_FILES = 60.0
"""Seconds that these take at least, also if a recording lacks them."""
GRACE = 10.0
"""Seconds of processor time that the tests of a bug may take in addition to three times what they took without it."""
WAIT = 120.0
"""Seconds that they may take besides, waiting for something that the bug prevents or for a processor."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    bugs = {room: bugs_of(ROOT, room) for room in options.room or rooms()}
    sample = draw(bugs, options.sample, options.seed)
    console.print(f"seed {options.seed}: {len(sample)} of {sum(map(len, bugs.values()))} bugs")
    with ExitStack() as folders:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for _ in range(options.jobs):
            folder = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="audit-")))
            trees.put(folders.enter_context(Tree(folder)))
        reach = _recorded(trees, folders, options)
        judged = _all(sample, trees, reach, options)
    survivors = diffs(judged, ROOT)
    if options.survivors:
        options.survivors.write_text(survivors)
    else:
        console.print(survivors, markup=False)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(judged)).decode())
    else:
        Console().print(table(judged, options.seed))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="chooses the sample (the time)")
    parser.add_argument("--sample", type=int, default=300, help="bugs to plant (300)")
    parser.add_argument("--room", action="append", choices=rooms(), help="only bugs of this room; can be repeated")
    parser.add_argument("--servers", action="store_true", help="also the tests that need servers; takes much longer")
    parser.add_argument("--budget", type=float, default=60, help="seconds of processor time that judge one bug (60)")
    parser.add_argument("--jobs", type=int, default=2, help="bugs judged at a time, each in its own copy (2)")
    parser.add_argument("--survivors", type=Path, help="write the survivors to this file instead of printing them")
    parser.add_argument("--json", action="store_true", help="print each bug as JSON instead of a table")
    parser.add_argument(
        "--recorded", type=Path, help="folder that keeps what tests execute, for other samples of the same code"
    )
    return parser


def _recorded(trees: SimpleQueue[Tree], folders: ExitStack, options: argparse.Namespace) -> Reach:
    kept = options.recorded or Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="reach-")))
    kinds = ("plain", "servers") if options.servers else ("plain",)
    tests = [str(each.relative_to(ROOT)) for kind in kinds for each in sorted(ROOT.glob(f"tests/*/{kind}"))]
    tests += [each for each in RECORDED if str(Path(each).parent) not in tests]
    console.print("which tests execute which line? (recorded once)")
    tree = trees.get()
    reach = recorded(tree, kept, tests, options.jobs)
    trees.put(tree)
    console.print(f"the tests take {reach.seconds:.0f} s of processor time")
    return reach


def _all(
    sample: Sequence[tuple[str, Mutation]], trees: SimpleQueue[Tree], reach: Reach, options: argparse.Namespace
) -> list[Judged]:
    def judge_one(numbered: tuple[int, tuple[str, Mutation]]) -> Judged:
        number, (room, bug) = numbered
        tree = trees.get()
        try:
            result = judge(tree, room, bug, reach, options.budget)
        finally:
            trees.put(tree)
        outcome = f"caught by {result.by}" if result.caught else f"SURVIVED ({result.by})"
        where = f"{number + 1}/{len(sample)} {bug.file}:{bug.first}"
        console.print(f"{where} {bug.operator}: {outcome}", markup=False)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(judge_one, enumerate(sample)))


def judge(tree: Tree, room: str, bug: Mutation, reach: Reach, budget: float) -> Judged:
    """The quick kinds of tests first: Spark is not started for a bug that plain tests notice."""
    if room == DECODER:
        tests, seconds = reach.quickest_files([f"tests/core/plain/test_{name}.py" for name in OF_THE_DECODER])
        judges = [(tests, max(seconds, OF_ALL_FILES))]
    else:
        judges = reach.tests_of(bug, budget)
    count = sum(len(tests) for tests, _ in judges)
    with tree.planted(bug):
        for tests, seconds in judges:
            processor = 3 * seconds + GRACE
            run = tree.run(tests, 2 * processor + WAIT, processor=processor)
            if run.outcome is not Outcome.PASSED:
                # A module that cannot be imported any more, or a decoder that cannot be compiled, is noticed, too.
                return Judged(room, bug, True, run.failed[0] if run.failed else "no test could run", count)
    return Judged(room, bug, False, f"{count} tests passed" if count else "no test reaches it", count)


if __name__ == "__main__":
    sys.exit(main())
