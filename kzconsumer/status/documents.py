"""The JSON documents about a member: what the API answers and the status page shows.

`status/server` serves each by its name, `status/events` sends those that have changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kzconsumer.logs.troubles import TROUBLES
from kzconsumer.redaction import HIDDEN, is_secret, redacted
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import keys_of
from kzconsumer.status.observer import INTERVAL, Observer
from kzconsumer.status.report import Point, Report, point


def _status(observer: Observer, report: Report) -> object:
    """A summary."""
    together = point(time.time(), report.partitions)
    return {
        "version": report.version,
        "group": report.group,
        "member": report.member,
        "state": report.state,
        "ready": report.unready is None,
        "alive": report.alive is None,
        "reason": report.alive or report.unready,
        "session": report.session,
        "generation": report.generation,
        "members": len(report.members),
        "owned": len(report.partitions),
        "stalled": len(report.stalled),
        "judgement": report.judgement,
        "lag": together.lag,
        "lag_seconds": together.lag_seconds,
        "rate": together.rate,
    }


def _members(observer: Observer, report: Report) -> object:
    return {"generation": report.generation, "members": report.members}


def _partitions(observer: Observer, report: Report) -> object:
    return {"owned": report.partitions, "assigned": report.assigned, "queues": report.queues}


def _history(observer: Observer, report: Report) -> object:
    return {"interval": INTERVAL, "points": history_since(observer, 0.0)}


def history_since(observer: Observer, at: float) -> list[Point]:
    """Observations after a time, in seconds since 1970; the latest is the last."""
    return [look for look in observer.history if look.at > at]


def _rebalances(observer: Observer, report: Report) -> object:
    return {"rebalances": list(observer.counters.rebalances.timeline)}


def _batches(observer: Observer, report: Report) -> object:
    return {"present": report.batch, "ended": report.batches}


def _errors(observer: Observer, report: Report) -> object:
    return {"errors": TROUBLES.all()}


def _config(observer: Observer, report: Report) -> object:
    return {"config": effective_settings(observer.settings)}


DOCUMENTS: dict[str, Callable[[Observer, Report], object]] = {
    "status": _status,
    "members": _members,
    "partitions": _partitions,
    "history": _history,
    "rebalances": _rebalances,
    "batches": _batches,
    "errors": _errors,
    "config": _config,
}


def effective_settings(settings: Settings) -> dict[str, object]:
    """Every key as it is written in the file, without secrets."""
    return {
        ".".join(place): HIDDEN if is_secret(place[-1]) else redacted(written)
        for place, _, written in keys_of(settings)
        if place != ("source",)
    }
