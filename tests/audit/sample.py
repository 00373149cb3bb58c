"""A random sample of bugs, and what its rate says of all of them. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from tests.audit.operators import Mutation


def draw(bugs: Mapping[str, Sequence[Mutation]], size: int, seed: int) -> list[tuple[str, Mutation]]:
    """`size` bugs with their rooms. Each statement is as likely as any other, however many bugs can be made of it."""
    statements: dict[tuple[str, str, int], list[Mutation]] = {}
    for room, made in bugs.items():
        for bug in made:
            statements.setdefault((room, bug.file, bug.first), []).append(bug)
    rng = random.Random(seed)
    chosen = rng.sample(sorted(statements), min(size, len(statements)))
    return [(room, rng.choice(statements[room, file, line])) for room, file, line in chosen]


def interval(caught: int, of: int, deviations: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a share: with 1.96 the true one is inside in 95 of 100 samples."""
    if not of:
        return 0.0, 1.0
    share, square = caught / of, deviations**2
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = deviations / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)
