"""Burrow's status of a partition, from its consumer's recent commits.

Source: Burrow 1.6, `core/internal/evaluator/caching.go`. A commit of an unchanged offset counts, as with Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

#: Commits that a judgement is based on, at most.
WINDOW = 15

Judgement: TypeAlias = Literal["OK", "WARN", "STOP", "STALL", "REWIND"]


class Commit(NamedTuple):
    """A stored offset and its lag then, None if unknown."""

    at: float
    offset: int
    lag: int | None


def judge(commits: Sequence[Commit], lag: int | None, now: float) -> Judgement | None:
    """`commits`, oldest first, are the window; `lag` is that of the last one now. None while there is nothing to judge.

    STOP: no commit for longer than the window spans. REWIND: an offset went back. STALL: commits that do not advance.
    WARN: they advance, and the lag never shrinks. All of these only while behind, and but for STOP only where the
    lag was never 0 in the window.
    """
    if not commits or lag is None:
        return None
    if lag <= 0:
        return "OK"
    if now - commits[-1].at > commits[-1].at - commits[0].at and len(commits) > 1:
        return "STOP"
    if len(commits) < 2 or any(commit.lag == 0 for commit in commits):
        return "OK"
    steps = list(pairwise(commits))
    if any(after.offset < before.offset for before, after in steps):
        return "REWIND"
    if all(after.offset == before.offset for before, after in steps):
        return "STALL"
    known = [commit.lag for commit in commits if commit.lag is not None]
    return "OK" if any(after < before for before, after in pairwise(known)) else "WARN"
