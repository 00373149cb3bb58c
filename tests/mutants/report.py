"""What became of each mutant, and the table of it."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import msgspec
from rich.table import Table


class Verdict(Enum):
    CAUGHT = "caught"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    """Survived, as it should."""
    NOT_EQUIVALENT = "caught, though listed as equivalent"
    BROKEN = "tests did not run"


GOOD = (Verdict.CAUGHT, Verdict.EQUIVALENT)


class Result(msgspec.Struct, frozen=True):
    id: str
    area: str
    what: str
    verdict: Verdict
    by: list[str]
    """The tests that failed."""


def table(results: list[Result]) -> Table:
    """The score of each area: the share of mutants caught, without equivalent ones."""
    shown = Table("area", "mutants", "caught", "survived", "equivalent", "score", title="planted bugs")
    for name in sorted({each.area for each in results}):
        shown.add_row(*_row(name, [each for each in results if each.area == name]))
    shown.add_section()
    shown.add_row(*_row("all", results))
    return shown


def _row(name: str, results: list[Result]) -> list[str]:
    count = Counter(each.verdict for each in results)
    equivalent = count[Verdict.EQUIVALENT]
    caught = count[Verdict.CAUGHT]
    judged = len(results) - equivalent
    score = f"{100 * caught // judged} %" if judged else "-"
    return [name, str(len(results)), str(caught), str(judged - caught), str(equivalent), score]
