"""The table of a run, and what the judge found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.table import Table

from tests.interop.run import Result

MOST = 20
"""Violations of each kind that are shown."""


def table(results: Sequence[Result]) -> Table:
    made = Table(
        "seed", "members", "faults", "messages", "repeats explained", "unexplained", "lost", "by the original",
        "other violations", title="groups of original, kafka-node and our members under random faults",
    )  # fmt: skip
    for each in results:
        verdict = each.verdict
        others = [found for found in verdict.violations if found.kind not in ("repeated", "lost")]
        made.add_row(
            str(each.setup.seed),
            _counted(kind.value for kind in each.members.values()),
            str(len(each.faults)),
            f"{sum(each.evidence.sent.values()):,}",
            "\n".join(f"{why}: {times:,}" for why, times in verdict.repeats.most_common()) or "0",
            f"{verdict.unexplained:,}",
            f"{verdict.lost:,}",
            f"{verdict.lost_by_original:,}",
            str(len(others)),
        )
    return made


def complaints(result: Result) -> Iterator[str]:
    """Lines for each kind of violation, the first ones of each."""
    by_kind = Counter(violation.kind for violation in result.verdict.violations)
    for kind, times in by_kind.items():
        yield f"seed {result.setup.seed}: {kind}: {times}"
        shown = [violation for violation in result.verdict.violations if violation.kind == kind][:MOST]
        yield from (f"  {violation}" for violation in shown)


def _counted(kinds: Iterator[str]) -> str:
    return ", ".join(f"{times} {kind}" for kind, times in Counter(kinds).items())
