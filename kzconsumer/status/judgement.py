"""Burrow's status of a partition, from its consumer's recent commits.

Source: Burrow 1.9, `core/internal/evaluator/caching.go`. A commit of an unchanged offset counts, as with Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from math import inf
from typing import Literal, NamedTuple, TypeAlias

#: Commits that a judgement is based on, at most.
WINDOW = 15

Judgement: TypeAlias = Literal["OK", "WARN", "STOP", "STALL", "REWIND"]


class Commit(NamedTuple):
    """A stored offset and its lag then, None if unknown."""

    at: float
    offset: int
    lag: int | None


def judge(
    commits: Sequence[Commit], lag: int | None, now: float, ends: Sequence[int] = (), alone: float = inf
) -> Judgement | None:
    """`commits`, oldest first, are the window; `lag` is that of the last one now. None while there is nothing to judge.

    STOP: no commit for longer than the window spans (`alone`: seconds that a single commit counts as), and none of the
    recent `ends` of the log was reached. REWIND: an offset went back, below one that was not reached again since.
    STALL: commits that do not advance. WARN: they advance, and the lag never shrinks. All of these only while behind;
    STALL and WARN only where the lag was never 0 in the window.
    """
    if not commits or lag is None:
        return None
    if lag <= 0:
        return "OK"
    last = commits[-1]
    span = last.at - commits[0].at if len(commits) > 1 else alone
    if now - last.at > span and not any(end <= last.offset for end in ends):
        return "STOP"
    steps = list(pairwise(commits))
    back = next((n for n, (before, after) in enumerate(steps) if after.offset < before.offset), None)
    if back is not None and all(after.offset < commits[back].offset for after in islice(commits, back + 1, None)):
        return "REWIND"
    if len(commits) < 2 or any(commit.lag == 0 for commit in commits):
        return "OK"
    if all(after.offset == before.offset for before, after in steps):
        return "STALL"
    known = [commit.lag for commit in commits if commit.lag is not None]
    return "OK" if any(after < before for before, after in pairwise(known)) else "WARN"
