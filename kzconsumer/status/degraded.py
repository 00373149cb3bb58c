"""Degraded: the member is ready, and something of it makes no progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kzconsumer.figures import plural, some
from kzconsumer.status.judgement import Judgement
from kzconsumer.status.report import Report

#: Partitions that a sentence names.
MOST_NAMES = 5

_JUDGED: dict[Judgement | None, str] = {
    "REWIND": "a committed offset decreased",
    "STALL": "committed offsets do not advance",
    "STOP": "no commits",
}


class Degraded(msgspec.Struct, frozen=True):
    """One reason; `partitions` are all that it applies to, none if it applies to the member."""

    reason: str
    partitions: list[str]
    text: str
    """The sentence for people."""


def degraded(report: Report) -> list[Degraded]:
    """The reasons, the worst first; none unless the member is ready and alive.

    Partitions paused by an operator are left out. A judgement is a reason only of partitions that have no other.
    """
    if report.unready is not None or report.alive is not None:
        return []
    return [*_failing(report), *_stalled(report), *_blocked(report), *_judged(report)]


def _failing(report: Report) -> Iterator[Degraded]:
    if report.commit_failure is not None:
        yield Degraded("commits fail", [], f"commits fail: {report.commit_failure}")


def _stalled(report: Report) -> Iterator[Degraded]:
    found: dict[str, list[str]] = {}
    for each in report.stalled:
        if each.hindrance is not None and each.hindrance != "paused":
            found.setdefault(each.hindrance, []).append(f"{each.topic}-{each.partition}")
    for hindrance, names in found.items():
        yield _of_partitions(hindrance, names, "stalled", hindrance)


def _blocked(report: Report) -> Iterator[Degraded]:
    found: dict[str, list[str]] = {}
    for each in report.blocked:
        found.setdefault(each.by, []).append(f"{each.topic}-{each.partition}")
    for holder, names in found.items():
        yield _of_partitions("claim blocked", names, "not claimed", f"owned by {holder}")


def _judged(report: Report) -> Iterator[Degraded]:
    for judgement, meaning in _JUDGED.items():
        names = [
            f"{each.topic}-{each.partition}"
            for each in report.partitions
            if each.judgement == judgement and not each.paused and not each.stalled
        ]
        if names:
            yield _of_partitions(str(judgement), names, f"judged {judgement}", meaning)


def _of_partitions(reason: str, names: Sequence[str], what: str, why: str) -> Degraded:
    return Degraded(reason, list(names), f"{plural(len(names), 'partition')} {what}: {some(names, MOST_NAMES)} ({why})")
