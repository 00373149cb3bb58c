"""Whose lines these are: the group, the member and the generation, in every line that is written on their behalf.

Owns one mapping for each member, which its tasks share: what is put there later is in all lines from then on. The
daemon and the connector put it there, and the rebalancer the generation; `log` takes it out.
"""

from __future__ import annotations

from contextvars import ContextVar

from structlog.typing import EventDict

_FACTS: ContextVar[dict[str, object] | None] = ContextVar("kzconsumer_facts", default=None)


def facts() -> dict[str, object]:
    """Those of this task, and of the tasks that it starts after the first call."""
    found = _FACTS.get()
    if found is None:
        found = {}
        _FACTS.set(found)
    return found


def add_facts(logger: object, method: str, event: EventDict) -> EventDict:
    """A processor of structlog; what a line says itself stays."""
    for key, value in (_FACTS.get() or {}).items():
        event.setdefault(key, value)
    return event
