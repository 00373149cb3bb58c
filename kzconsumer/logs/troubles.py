"""Counts of warnings and errors of this process by log event, with the last reason of each, secrets hidden."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from structlog.typing import EventDict

from kzconsumer.redaction import redacted

LEVELS = ("warning", "error", "critical")
#: Different events, at most; all further ones are counted as OTHERS.
KINDS = 200
OTHERS = "others"


class Trouble(msgspec.Struct):
    """One event; times are seconds since 1970."""

    level: str
    event: str
    count: int
    first: float
    last: float
    reason: str | None


class Troubles:
    """A processor of structlog that lets every line pass."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], Trouble] = {}

    def __call__(self, logger: object, method: str, line: EventDict) -> EventDict:
        level = str(line.get("level"))
        if level in LEVELS:
            self._note(level, line)
        return line

    def _note(self, level: str, line: Mapping[str, object]) -> None:
        event = str(line.get("event")) if "_record" not in line else "a library's"
        if (level, event) not in self._kinds and len(self._kinds) >= KINDS:
            event = OTHERS
        at = time.time()
        trouble = self._kinds.setdefault((level, event), Trouble(level, event, 0, at, at, None))
        trouble.count += 1
        trouble.last = at
        reason = line.get("reason") or line.get("error")
        trouble.reason = str(redacted(str(reason))) if reason is not None else None

    def all(self) -> list[Trouble]:
        """The latest first."""
        return sorted(self._kinds.values(), key=lambda trouble: -trouble.last)


TROUBLES = Troubles()
"""Of this process."""
