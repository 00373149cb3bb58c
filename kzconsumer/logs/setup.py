"""Logging of the daemon and the commands: structlog, and the standard library's logging, which libraries use.

Tracebacks have no values of variables, which may be records or passwords. The library never calls this (`logs.logger`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from kzconsumer.clock import now
from kzconsumer.logs.logger import add_facts
from kzconsumer.logs.repeats import INTERVAL, Repeats, same
from kzconsumer.logs.troubles import TROUBLES
from kzconsumer.printable import printable
from kzconsumer.redaction import redacted_text

_CONTROL = re.compile("[\x7f-\x9f]")
_QUIET = ("aiozk", "py4j", "asyncio")


def for_one_answer() -> None:
    """Logging of a command that prints one answer: errors only, in the form of its own error messages."""
    configure("error", "line")


def configure(level: str, format: str) -> None:
    """Log what is at least `level` (debug, info, warning, error) to standard error, or to the journal.

    `format` is console, json, auto (console if standard error is a terminal, else json), journald, or line: in the form
    of a command's error messages. Verbose libraries are held at warning. Raises ConfigError if there is no journal.
    """
    global _last_reason
    finish()
    _last_reason = ""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    readable = format == "console" or (format == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        add_facts,
        structlog.processors.add_log_level,
        TROUBLES,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if readable else "iso", utc=not readable),
    ]
    render: list[Processor]
    of_libraries: list[Processor] = []
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    logger: Callable[[], WrappedLogger] = lambda: structlog.WriteLogger(sys.stderr)  # noqa: E731  (the stream of the moment)
    if format == "line":
        render = [_printable, _line]
    elif format == "journald":
        from kzconsumer.logs.journal import Journal, JournalHandler, fields_as_text, journal_fields, require_journal

        require_journal()
        journal = Journal()
        render = [journal_fields]
        handler, logger, of_libraries = JournalHandler(journal), lambda: journal, [fields_as_text]
    elif readable:
        plain = structlog.dev.ConsoleRenderer(colors=_colors(), exception_formatter=structlog.dev.plain_traceback)
        render = [_printable, plain]
    else:
        render = [structlog.processors.JSONRenderer(ensure_ascii=False), _escaped]
    render = [structlog.processors.format_exc_info, _without_secrets, *render]

    global _left_out
    _left_out = _LeftOut(render)
    structlog.configure(
        processors=[*shared, _left_out, *render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *name: logger(),
    )
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render, *of_libraries],
        )
    )
    logging.basicConfig(level=threshold, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    logging.captureWarnings(True)


def _colors() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ


def finish() -> None:
    """Write the last of the repeated lines that were left out until now."""
    if _left_out is not None:
        _left_out.write_overdue(0.0)


class _LeftOut:
    """A processor that leaves out repeated warnings, and writes once a minute how many.

    Errors are always written, except those marked `again`: outcomes of another attempt.
    """

    def __init__(self, render: Sequence[Processor]) -> None:
        self._render = render
        self._repeats: Repeats[tuple[WrappedLogger, str, EventDict]] = Repeats()
        self._threads = threading.Lock()

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        self.write_overdue(INTERVAL)
        if event.pop("again", False) or event["level"] == "warning":
            with self._threads:
                admitted = self._repeats.admit(same(event), (logger, method, dict(event)), now())
            if not admitted:
                raise structlog.DropEvent
        return event

    def write_overdue(self, interval: float) -> None:
        with self._threads:
            overdue = self._repeats.overdue(now(), interval)
        for (logger, method, event), left_out in overdue:
            rendered: Any = {**event, "left_out": left_out}
            for processor in self._render:
                rendered = processor(logger, method, rendered)
            write = getattr(logger, method)
            write(**rendered) if isinstance(rendered, dict) else write(rendered)


_left_out: _LeftOut | None = None
_last_reason = ""


def _without_secrets(logger: object, method: str, event: EventDict) -> EventDict:
    """Hide secrets: another library's error may repeat a URL, also in a traceback."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = redacted_text(value)
    return event


def _printable(logger: object, method: str, event: EventDict) -> EventDict:
    """Escape line ends and control characters, which texts of brokers and nodes may hold."""
    for key, value in event.items():
        if isinstance(value, str) and key != "exception":
            event[key] = printable(value)
    return event


def _escaped(logger: object, method: str, line: Any) -> str:
    """Escape the control characters that JSON leaves as they are."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _line(logger: object, method: str, event: EventDict) -> str:
    """`kzconsumer: <what>: <key> <value>, ...: <reason>`, and a traceback where there is one."""
    global _last_reason
    what, exception = event.pop("event"), event.pop("exception", "")
    _last_reason = reason = str(event.pop("reason", ""))
    facts = [f"{key} {_words(value)}" for key, value in event.items() if key not in ("level", "timestamp")]
    about = ", ".join(each for each in facts if each not in reason)
    line = ": ".join(filter(None, ("kzconsumer", what, about, reason)))
    return f"{line}\n{exception}" if exception else line


def _words(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def just_reported(text: str) -> bool:
    """Whether the last line in the form of an error message has the reason of this error."""
    return _last_reason != "" and _last_reason in text
