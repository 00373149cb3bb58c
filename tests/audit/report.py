"""What became of a sample: a table by room, and the survivors as diffs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from tests.audit.operators import Mutation
from tests.audit.sample import interval


class Judged(msgspec.Struct, frozen=True):
    room: str
    bug: Mutation
    caught: bool
    by: str
    """The test that failed; of a survivor, why nothing did."""
    tests: int
    """How many tests reach it."""


def table(judged: Sequence[Judged], seed: int) -> Table:
    title = f"bugs chosen at random (seed {seed})"
    shown = Table("room", "bugs", "caught", "not reached", "rate", "95 % of samples", title=title)
    for room in sorted({each.room for each in judged}):
        shown.add_row(*_row(room, [each for each in judged if each.room == room]))
    shown.add_section()
    shown.add_row(*_row("all", judged))
    return shown


def diffs(judged: Sequence[Judged], root: Path) -> str:
    """The survivors, to be judged by a person: equivalent, cosmetic, or a test that is missing."""
    return "\n".join(_diff(each, root) for each in judged if not each.caught)


def _row(room: str, judged: Sequence[Judged]) -> list[str]:
    caught = sum(each.caught for each in judged)
    low, high = interval(caught, len(judged))
    unreached = sum(not each.tests for each in judged)
    rate = f"{100 * caught / len(judged):.0f} %"
    return [room, str(len(judged)), str(caught), str(unreached), rate, f"{100 * low:.0f} to {100 * high:.0f} %"]


def _diff(each: Judged, root: Path) -> str:
    source = (root / each.bug.file).read_text()
    before, after = source.splitlines(), each.bug.plant(source).splitlines()
    lines = difflib.unified_diff(before, after, each.bug.file, each.bug.operator, n=2, lineterm="")
    where = f"{each.bug.file}:{each.bug.first} {each.bug.function}"
    return "\n".join([f"# {where}: {each.bug.operator}; {each.by}", *lines, ""])
