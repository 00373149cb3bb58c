"""Plants known bugs in the code, one at a time, and runs the tests that must catch each: `make mutants`.

The status is 1 if one is not caught, or if one that is listed as equivalent is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import msgspec
from rich.console import Console

from tests.mutants.mutant import Mutant, areas
from tests.mutants.report import GOOD, Result, Verdict, table
from tests.mutants.tree import Outcome, Run, Tree

console = Console(stderr=True, soft_wrap=True, highlight=False)


class Planned(NamedTuple):
    area: str
    mutant: Mutant


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = _chosen(options)
    if not chosen:
        console.print("no mutant has such an id, area or file")
        return 2
    with ExitStack() as folders:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for _ in range(min(options.jobs, len(chosen))):
            folder = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
            trees.put(folders.enter_context(Tree(folder)))
        if not options.unchecked and not _pass_unchanged(chosen, trees, options.limit):
            return 2
        results = _all(chosen, trees, options)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(results)).decode())
    else:
        Console().print(table(results))
    return 0 if all(each.verdict in GOOD for each in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these mutants")
    parser.add_argument("--area", action="append", default=[], help="only mutants of this area; can be repeated")
    parser.add_argument("--file", action="append", default=[], help="only mutants of this file; can be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tested at a time, each in its own copy (1)")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which tests have failed (900)")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests on unchanged code first")
    parser.add_argument("--output", action="store_true", help="print the output of the tests that ran on each mutant")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    return parser


def _chosen(options: argparse.Namespace) -> list[Planned]:
    """Without options all of them; else those that every given option names."""
    return [
        Planned(area, mutant)
        for area, mutants in areas().items()
        for mutant in mutants
        if (not options.ids or mutant.id in options.ids)
        and (not options.area or area in options.area)
        and (not options.file or mutant.file in options.file)
    ]


def _pass_unchanged(chosen: list[Planned], trees: SimpleQueue[Tree], limit: float) -> bool:
    """A test that fails on unchanged code catches nothing."""
    tests = list(dict.fromkeys(test for each in chosen for test in each.mutant.tests))
    console.print(f"{len(chosen)} mutants; their tests on unchanged code ...")
    tree = trees.get()
    run = tree.run(tests, limit * len(chosen))
    trees.put(tree)
    if run.outcome is not Outcome.PASSED:
        console.print(run.output, markup=False)
        console.print("the tests do not pass on unchanged code")
    return run.outcome is Outcome.PASSED


def _all(chosen: list[Planned], trees: SimpleQueue[Tree], options: argparse.Namespace) -> list[Result]:
    def judge(each: Planned) -> Result:
        tree = trees.get()
        try:
            with tree.planted(each.mutant):
                run = tree.run(each.mutant.tests, options.limit)
        finally:
            trees.put(tree)
        result = Result(each.mutant.id, each.area, each.mutant.what, _verdict(each.mutant, run), run.failed)
        by = f" by {result.by[0]}" if result.by else ""
        console.print(f"{result.id}: {result.verdict.value}{by}  ({result.what})", markup=False)
        if options.output or result.verdict is Verdict.BROKEN:
            console.print(run.output, markup=False)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(judge, chosen))


def _verdict(mutant: Mutant, run: Run) -> Verdict:
    if run.outcome is Outcome.BROKEN:
        return Verdict.BROKEN
    if mutant.equivalent is not None:
        return Verdict.EQUIVALENT if run.outcome is Outcome.PASSED else Verdict.NOT_EQUIVALENT
    return Verdict.CAUGHT if run.outcome is Outcome.FAILED else Verdict.SURVIVED


if __name__ == "__main__":
    sys.exit(main())
