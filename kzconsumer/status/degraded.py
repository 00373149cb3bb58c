"""Degraded: the member is ready, and something of it makes no progress, or is not known to."""

from __future__ import annotations

from collections.abc import Iterator

from kzconsumer.figures import plural, some
from kzconsumer.lag.findings import MOST_NAMES, Examination, Finding, FindingId, examined, finding, of_partitions
from kzconsumer.lag.partition import FRESH
from kzconsumer.lag.totals import reasons, total
from kzconsumer.status.judgement import Judgement
from kzconsumer.status.report import Report
from kzconsumer.status.track import Hindrance, PartitionStatus

_JUDGED: dict[Judgement | None, tuple[FindingId, str]] = {
    "REWIND": ("commits_rewind", "a committed offset decreased"),
    "STALL": ("commits_stall", "committed offsets do not advance"),
    "STOP": ("commits_stop", "no commits"),
}
_STALLED: dict[Hindrance, FindingId] = {
    "failed": "partition_failed",
    "no leader": "no_leader",
    "brokers unreachable": "no_leader",
    "sink slow": "sink_slow",
}


def degraded(report: Report) -> list[Finding]:
    """The findings, the worst first; none unless the member is ready and alive.

    Partitions paused by an operator are left out, unless their lag is unknown. A judgement is a reason only of
    partitions that have no other.
    """
    if report.unready is not None or report.alive is not None:
        return []
    return [
        *_failing(report),
        *_missing(report),
        *_stalled(report),
        *_blocked(report),
        *_lost(report),
        *_unknown(report),
        *_judged(report),
    ]


def examination(report: Report) -> Examination:
    """Healthy, unhealthy, or not examined: not joined yet, without a valid session, or with logs of unknown length."""
    if report.alive is not None:
        return examined([finding("stuck", report.group, f"the member is stuck: {report.alive}")])
    if report.unready is not None:
        return examined([], [report.unready])
    found = degraded(report)
    named = {name for each in found for name in each.partitions}
    unknown = total(each.progress for each in report.partitions if _name(each) not in named).unknown
    return examined(found, [f"lag unknown: {reasons(unknown)}"] if unknown else [])


def _failing(report: Report) -> Iterator[Finding]:
    if report.commit_failure is not None:
        yield finding("commits_fail", report.group, f"commits fail: {report.commit_failure}")
    if report.unreadable:
        text = "a node of the group is unreadable, so nothing can be assigned: the log names it"
        yield finding("not_readable", report.group, text)


def _missing(report: Report) -> Iterator[Finding]:
    if report.missing:
        topics = f"{plural(len(report.missing), 'topic')} not found: {some(report.missing, MOST_NAMES)}"
        yield finding("topic_missing", report.group, f"{topics} (the member waits for it)")


def _stalled(report: Report) -> Iterator[Finding]:
    found: dict[Hindrance, list[str]] = {}
    for each in report.stalled:
        if each.hindrance is not None and _is_stalled(each):
            found.setdefault(each.hindrance, []).append(_name(each))
    for hindrance, names in found.items():
        yield of_partitions(_STALLED.get(hindrance, "stalled"), report.group, names, "stalled", hindrance)


def _blocked(report: Report) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    for each in report.blocked:
        found.setdefault(each.by, []).append(f"{each.topic}-{each.partition}")
    for holder, names in found.items():
        yield of_partitions("claim_blocked", report.group, names, "not claimed", f"owned by {holder}")


def _lost(report: Report) -> Iterator[Finding]:
    """Of partitions that are not fetched: those that are go on as `[offsets] reset` says."""
    those = [each for each in report.partitions if each.progress.lost]
    if those:
        lost = plural(sum(each.progress.lost or 0 for each in those), "offset")
        names = [_name(each) for each in those]
        yield of_partitions("offsets_lost", report.group, names, "behind the log's start", f"{lost} deleted before")


def _unknown(report: Report) -> Iterator[Finding]:
    """Nobody can tell whether they have caught up. Not at once: a claim has to be read first, a leader may change."""
    those = [each for each in report.partitions if _is_unknown(each) and not _is_stalled(each)]
    if those:
        why = reasons(total(each.progress for each in those).unknown)
        yield of_partitions("lag_unknown", report.group, [_name(each) for each in those], "with unknown lag", why)


def _is_unknown(each: PartitionStatus) -> bool:
    return each.progress.behind is None and each.standing > FRESH


def _is_stalled(each: PartitionStatus) -> bool:
    return each.stalled and each.hindrance != "paused"


def _judged(report: Report) -> Iterator[Finding]:
    for judgement, (id, meaning) in _JUDGED.items():
        names = [
            _name(each)
            for each in report.partitions
            if each.judgement == judgement and not each.paused and not each.stalled
        ]
        if names:
            yield of_partitions(id, report.group, names, f"judged {judgement}", meaning)


def _name(each: PartitionStatus) -> str:
    return f"{each.topic}-{each.partition}"
