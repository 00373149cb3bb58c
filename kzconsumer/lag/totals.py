"""Sums over partitions, in three figures: what is known, what it is at least, and how many are unknown and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from kzconsumer.figures import count, plural, span
from kzconsumer.lag.partition import FRESH, PartitionLag, Reason


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """Of partitions that exist; `gone` counts the others, whose offsets are left over."""

    partitions: int
    known: int
    """The sum of the known lags."""
    at_least: int
    """That, and what the unknown ones cannot be below."""
    unknown: dict[Reason, int]
    """Partitions without a known lag, by reason."""
    seconds: float | None
    """The largest known age; None if none is known. A lower bound if `unknown_seconds` is not empty."""
    unknown_seconds: dict[Reason, int]
    """Partitions without a known age, by reason."""
    lost: int | None
    """Offsets deleted from the logs before they were processed, as far as the logs' starts are known. None if none is
    known to be, and the start of one log is unknown."""
    gone: int
    age: float | None
    """Of the oldest reading in `known`, in seconds."""

    @property
    def lag(self) -> int | None:
        """The exact sum; None if one partition is unknown."""
        return None if self.unknown else self.known

    @property
    def lag_seconds(self) -> float | None:
        """The exact largest age; None if one is unknown."""
        return None if self.unknown_seconds else self.seconds


def total(rows: Iterable[PartitionLag]) -> Total:
    every = list(rows)
    present = [each for each in every if not each.gone]
    seconds = [each.seconds for each in present if each.seconds is not None]
    return Total(
        partitions=len(present),
        known=sum(each.lag for each in present if each.lag is not None),
        at_least=sum(each.at_least for each in present),
        unknown=dict(Counter(each.why.reason for each in present if each.why is not None).most_common()),
        seconds=max(seconds) if seconds else None if present else 0.0,
        unknown_seconds=dict(
            Counter(each.why_seconds.reason for each in present if each.why_seconds is not None).most_common()
        ),
        lost=_lost(present),
        gone=len(every) - len(present),
        age=max((each.age for each in present if each.lag is not None and each.age is not None), default=None),
    )


def _lost(present: list[PartitionLag]) -> int | None:
    """Where nothing was committed, nothing can be lost."""
    known = sum(each.lost or 0 for each in present)
    asked = all(each.lost is not None or _has_no_position(each) for each in present)
    return known if known or asked else None


def _has_no_position(each: PartitionLag) -> bool:
    return each.why is not None and each.why.reason == "never committed"


def lag_text(found: Total) -> str:
    """`270`; `270, 40 s ago`; `at least 270 (3 unknown: 2 no leader, 1 never committed)`; `unknown (no leader)`."""
    if not found.unknown:
        return count(found.known) + _as_of(found.age)
    return f"at least {count(found.at_least)} {_unknown(found)}" if found.at_least else f"unknown {_unknown(found)}"


def behind_text(found: Total) -> str:
    """`270 records behind`; `at least 270 records behind (1 unknown: no leader)`; `lag unknown (no leader)`."""
    if not found.unknown:
        return f"{plural(found.known, 'record')} behind" + _as_of(found.age)
    if found.at_least:
        return f"at least {plural(found.at_least, 'record')} behind {_unknown(found)}"
    return f"lag unknown {_unknown(found)}"


def _unknown(found: Total) -> str:
    """Of how many partitions, and why; without a number if nothing at all is known."""
    number, why = sum(found.unknown.values()), reasons(found.unknown)
    return f"({why})" if number == found.partitions and not found.at_least else f"({number:,} unknown: {why})"


def age_text(found: Total) -> str:
    """`2 min 5 s`, `at least 2 min 5 s`, `unknown`."""
    if not found.unknown_seconds:
        return span(found.seconds)
    return f"at least {span(found.seconds)}" if found.seconds else "unknown"


def reasons(unknown: dict[Reason, int]) -> str:
    """`2 no leader, 1 never committed`; a single reason without its number."""
    if len(unknown) == 1:
        return next(iter(unknown))
    return ", ".join(f"{number:,} {reason}" for reason, number in unknown.items())


def _as_of(age: float | None) -> str:
    return f", {span(age)} ago" if age is not None and age > FRESH else ""
