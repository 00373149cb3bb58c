"""Health of a group or a member: healthy, unhealthy with findings, or not examined with what could not be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from kzconsumer.figures import plural, some

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
    "partition_failed",
    "sink_slow",
    "stalled",
    "stuck",
    "topic_gone",
    "topic_missing",
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
        "not_permitted": Kind("kzconsumer groups describe {group}", "not-permitted-the-acl-there-is-for-another-user"),
        "not_readable": Kind("kzconsumer groups verify {group}", "partitions-without-owner"),
        "offsets_after_log": Kind("kzconsumer offsets show {group}", "offsets-out-of-range-or-changed"),
        "offsets_lost": Kind("kzconsumer offsets show {group}", "offsets-out-of-range-or-changed"),
        "partition_failed": Kind("kzconsumer lag {group}", "a-partition-is-stalled"),
        "sink_slow": Kind("kzconsumer lag {group}", "a-partition-is-stalled"),
        "stalled": Kind("kzconsumer lag {group}", "a-partition-is-stalled"),
        "stuck": Kind("kzconsumer groups describe {group}", "a-member-is-not-ready"),
        "topic_gone": Kind("kzconsumer groups clean {group}", "offsets-of-deleted-topics"),
        "topic_missing": Kind("kzconsumer topics list", "a-member-is-not-ready"),
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
    return Finding(id, text, list(partitions), kind.command.format(group=group), f"troubleshooting.html#{kind.see}")


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
