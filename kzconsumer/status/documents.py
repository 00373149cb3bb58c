"""The JSON documents of the status API, by name."""

from __future__ import annotations

from collections.abc import Callable

from kzconsumer.lag.totals import age_text, lag_text
from kzconsumer.logs.troubles import TROUBLES
from kzconsumer.redaction import HIDDEN, is_secret, redacted
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import keys_of
from kzconsumer.status.degraded import examination
from kzconsumer.status.observer import Observer
from kzconsumer.status.report import Point, Report
from kzconsumer.status.track import INTERVAL


def _status(report: Report) -> object:
    total, examined = report.total, examination(report)
    return {
        "version": report.version,
        "started": report.started,
        "cluster": report.cluster,
        "group": report.group,
        "member": report.member,
        "state": report.state,
        "ready": report.unready is None,
        "alive": report.alive is None,
        "reason": report.alive or report.unready,
        "health": examined.health,
        "findings": examined.findings,
        "not_asked": examined.not_asked,
        "session": report.session,
        "generation": report.generation,
        "members": len(report.members),
        "owned": len(report.partitions),
        "stalled": len(report.stalled),
        "judgement": report.judgement,
        "lag": total.lag,
        "lag_seconds": total.lag_seconds,
        "lag_text": lag_text(total),
        "lag_seconds_text": age_text(total),
        "total": total,
        "rate": report.rate,
        "eta": report.eta,
    }


def history_since(observer: Observer, at: float) -> list[Point]:
    """Observations after a time, in seconds since 1970; the latest is the last."""
    return [look for look in observer.history if look.at > at]


DOCUMENTS: dict[str, Callable[[Observer, Report], object]] = {
    "status": lambda observer, report: _status(report),
    "members": lambda observer, report: {"generation": report.generation, "members": report.members},
    "partitions": lambda observer, report: {
        "owned": report.partitions,
        "assigned": report.assigned,
        "queues": report.queues,
    },
    "history": lambda observer, report: {"interval": INTERVAL, "points": history_since(observer, 0.0)},
    "rebalances": lambda observer, report: {"rebalances": list(observer.counters.rebalances.timeline)},
    "batches": lambda observer, report: {
        "present": report.batch,
        "ended": report.batches,
        "sink": report.sink,
    },
    "errors": lambda observer, report: {"errors": TROUBLES.all()},
    "config": lambda observer, report: {"config": effective_settings(observer.settings)},
}


def effective_settings(settings: Settings) -> dict[str, object]:
    """Every key with its value as written in the file, secrets redacted."""
    return {
        ".".join(place): HIDDEN if is_secret(place[-1]) else redacted(written)
        for place, _, written in keys_of(settings)
        if place != ("source",)
    }
