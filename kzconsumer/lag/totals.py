"""Sums over partitions: what is known, at least, and how many are unknown and why; and the health that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from shlex import quote
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from kzconsumer.display import count, plural, some, span
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
    def empty(self) -> bool:
        """Of no partition at all. For a group seen from outside that is no lag of 0: it may just have started."""
        return not (self.partitions or self.gone)

    @property
    def lag(self) -> int | None:
        """The exact sum; None if one partition is unknown."""
        return None if self.unknown else self.known

    @property
    def lag_seconds(self) -> float | None:
        """The exact largest age; None if one is unknown."""
        return None if self.unknown_seconds else self.seconds


def total(rows: Iterable[PartitionLag], *, elsewhere: int = 0) -> Total:
    """`elsewhere`: number of partitions of which only another client knows."""
    every = list(rows)
    others: dict[Reason, int] = {"kept by another client": elsewhere} if elsewhere else {}
    present = [each for each in every if not each.gone]
    seconds = [each.seconds for each in present if each.seconds is not None]
    return Total(
        partitions=len(present) + elsewhere,
        known=sum(each.lag for each in present if each.lag is not None),
        at_least=sum(each.at_least for each in present),
        unknown=others | dict(Counter(each.why.reason for each in present if each.why is not None).most_common()),
        seconds=max(seconds) if seconds else None if present or elsewhere else 0.0,
        unknown_seconds=others
        | dict(Counter(each.why_seconds.reason for each in present if each.why_seconds is not None).most_common()),
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


# Health: healthy, unhealthy with findings, or not examined with what could not be asked.

#: Partitions that a sentence names.
MOST_NAMES = 5

FindingId: TypeAlias = Literal[
    "claim_blocked",
    "commits_fail",
    "lag_unknown",
    "no_leader",
    "no_members",
    "not_permitted",
    "not_readable",
    "offsets_after_log",
    "offsets_lost",
    "other_owner",
    "partition_failed",
    "rebalances_fail",
    "sink_slow",
    "stalled",
    "stuck",
    "topic_gone",
    "topic_missing",
    "topic_recreated",
    "transaction_open",
    "unowned",
    "commits_stop",
    "commits_stall",
    "commits_rewind",
]


class Kind(msgspec.Struct, frozen=True):
    """`command` may name `{group}`; `see` is an anchor of docs/troubleshooting.md."""

    command: str
    see: str


#: What an operator does next for each, and where it is explained.
KINDS: Mapping[FindingId, Kind] = MappingProxyType(
    {
        "claim_blocked": Kind("kzconsumer groups doctor {group}", "partitions-without-owner"),
        "commits_fail": Kind("kzconsumer groups doctor {group}", "commits-fail"),
        "lag_unknown": Kind("kzconsumer lag {group}", "the-lag-is-unknown"),
        "no_leader": Kind("kzconsumer cluster describe", "no-partition-leader"),
        "no_members": Kind("kzconsumer groups describe {group}", "partitions-without-owner"),
        "not_permitted": Kind("kzconsumer lag {group}", "the-lag-is-unknown"),
        "not_readable": Kind("kzconsumer groups verify {group}", "partitions-without-owner"),
        "offsets_after_log": Kind("kzconsumer offsets show {group}", "offsets-out-of-range-or-changed"),
        "offsets_lost": Kind("kzconsumer offsets show {group}", "offsets-out-of-range-or-changed"),
        "other_owner": Kind("kzconsumer groups doctor {group}", "partitions-without-owner"),
        "partition_failed": Kind("kzconsumer lag {group}", "a-partition-is-stalled"),
        "rebalances_fail": Kind("kzconsumer groups doctor {group}", "the-group-keeps-rebalancing"),
        "sink_slow": Kind("kzconsumer lag {group}", "a-partition-is-stalled"),
        "stalled": Kind("kzconsumer lag {group}", "a-partition-is-stalled"),
        "stuck": Kind("kzconsumer groups describe {group}", "a-member-is-not-ready"),
        "topic_gone": Kind("kzconsumer groups clean {group}", "offsets-of-deleted-topics"),
        "topic_missing": Kind("kzconsumer topics list", "a-member-is-not-ready"),
        "topic_recreated": Kind("kzconsumer offsets show {group}", "offsets-out-of-range-or-changed"),
        "transaction_open": Kind("kzconsumer lag {group}", "a-partition-is-stalled"),
        "unowned": Kind("kzconsumer groups doctor {group}", "partitions-without-owner"),
        "commits_stop": Kind("kzconsumer lag {group}", "commits-stop-stall-or-go-back"),
        "commits_stall": Kind("kzconsumer lag {group}", "commits-stop-stall-or-go-back"),
        "commits_rewind": Kind("kzconsumer lag {group}", "commits-stop-stall-or-go-back"),
    }
)


class Finding(msgspec.Struct, frozen=True):
    """One problem; `partitions` are all that it applies to, none if it applies to the member or group."""

    id: FindingId
    text: str
    """The sentence for people."""
    partitions: list[str]
    command: str
    """What shows more."""
    see: str
    """The page and section that says what to do."""


def finding(id: FindingId, group: str, text: str, partitions: Sequence[str] = ()) -> Finding:
    kind = KINDS[id]
    return Finding(
        id, text, list(partitions), kind.command.format(group=quote(group)), f"troubleshooting.html#{kind.see}"
    )


def of_partitions(id: FindingId, group: str, names: Sequence[str], what: str, why: str) -> Finding:
    """`3 partitions stalled: t-0, t-1, t-2 (sink slow)`."""
    return finding(id, group, f"{plural(len(names), 'partition')} {what}: {some(names, MOST_NAMES)} ({why})", names)


Verdict: TypeAlias = Literal["healthy", "unhealthy", "not examined"]
VERDICTS: tuple[Verdict, ...] = ("healthy", "unhealthy", "not examined")


class Examination(msgspec.Struct, frozen=True):
    """`not_asked`: what could not be asked, a sentence each. Without findings it leaves the health unknown."""

    health: Verdict
    findings: list[Finding]
    not_asked: list[str]


def examined(findings: Iterable[Finding], not_asked: Iterable[str] = ()) -> Examination:
    found, missing = list(findings), list(not_asked)
    return Examination(verdict(found, missing), found, missing)


def verdict(findings: Sized, not_asked: Sized) -> Verdict:
    return "unhealthy" if findings else "not examined" if not_asked else "healthy"
