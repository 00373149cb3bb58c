"""The logger of this package, and the facts that all lines of a member carry: group, member, generation.

A library must not configure logging, install handlers or print. The daemon and the commands configure structlog
(`logs.setup`), an application may; in any other program events go to the standard loggers `kzconsumer.*`,
with the fields behind the event and as the attribute `fields` of the log record.
"""

from __future__ import annotations

import logging
import sys
import traceback
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from kzconsumer.display import redacted, redacted_text

if TYPE_CHECKING:
    from structlog.typing import EventDict

_FACTS: ContextVar[dict[str, object] | None] = ContextVar("kzconsumer_facts", default=None)


def facts() -> dict[str, object]:
    """Fields of every line of this task and of the tasks that it starts after the first call, to be added to."""
    found = _FACTS.get()
    if found is None:
        found = {}
        _FACTS.set(found)
    return found


def add_facts(logger: object, method: str, event: EventDict) -> EventDict:
    """A processor of structlog; a line's own fields win."""
    for key, value in (_FACTS.get() or {}).items():
        event.setdefault(key, value)
    return event


def get_logger(name: str) -> Logger:
    """The logger of one room, such as `kzconsumer.group`."""
    return Logger(name)


class Logger:
    """Logs an event, a short phrase, with fields. `again=True` marks the outcome of another attempt: it is no field."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._standard = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        self._log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._log("error", event, {"exc_info": True, **fields})

    def _log(self, level: str, event: str, fields: dict[str, Any]) -> None:
        # Who has configured structlog has imported it: that takes longer than joining a group.
        structlog: Any = sys.modules.get("structlog")
        is_configured = getattr(structlog, "is_configured", None)  # not yet there while another thread imports it
        if is_configured is not None and is_configured():
            # Our own configuration (`logs.setup`) does the rest. An application's would show secrets, and not whose
            # line it is.
            if add_facts not in structlog.get_config()["processors"]:
                fields = _complete(fields)
            try:
                getattr(structlog.get_logger(self._name), level)(event, **fields)
            except Exception as failure:  # of the application's configuration, which must not end a member
                fields["structlog"] = repr(failure)
            else:
                return
        number = logging.getLevelNamesMapping()[level.upper()]
        if not self._standard.isEnabledFor(number):
            return
        fields = _complete(fields)
        error = fields.pop("exception", None)
        text = " ".join([event, *(f"{name}={_shown(value)}" for name, value in fields.items())])
        if error:
            text += f"\n{error}"
        self._standard.log(number, "%s", text, stacklevel=3, extra={"fields": fields})


def _complete(fields: dict[str, Any]) -> dict[str, Any]:
    """With the facts, without secrets, and with the traceback as text: a handler would show what it says unredacted."""
    error = fields.get("exc_info")
    shown: dict[str, Any] = {name: value for name, value in fields.items() if name not in ("again", "exc_info")}
    shown = redacted({**(_FACTS.get() or {}), **shown})
    if error:
        found = error if isinstance(error, BaseException) else sys.exception()
        shown["exception"] = redacted_text("".join(traceback.format_exception(found)).rstrip())
    return shown


def _shown(value: object) -> str:
    text = redacted_text(str(value))
    return text if text.isprintable() and text and not set(" \"'=").intersection(text) else repr(text)
