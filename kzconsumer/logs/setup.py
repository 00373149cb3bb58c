"""Where log lines of the daemon and the commands go: the terminal, JSON or systemd's journal; and how many are errors.

It configures structlog, and the standard library's logging, which libraries use. Tracebacks have no values of
variables, which may be records or passwords. The library never calls this (`logs.logger`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from kzconsumer.clock import now
from kzconsumer.display import printable, redacted, redacted_text
from kzconsumer.errors import ConfigError
from kzconsumer.logs.logger import add_facts
from kzconsumer.logs.repeats import INTERVAL, Repeats, same

# systemd's journal: each key is the field KZCONSUMER_<KEY>, MESSAGE is the whole line as text.

SOCKET = Path("/run/systemd/journal/socket")

_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_NO_FIELD: Final = re.compile(r"[^A-Z0-9_]")


def require_journal(source: str = "") -> None:
    """Raises ConfigError if there is no journal to write to."""
    if not SOCKET.is_socket():
        begin = f"{source}: " if source else ""
        raise ConfigError([f'{begin}[log] format: "journald", but there is no journal here ({SOCKET})'])


def journal_fields(logger: object, method: str, event: EventDict) -> dict[str, str]:
    """The last processor of structlog: the fields that `Journal` sends."""
    level, what = event.pop("level", "info"), str(event.pop("event", ""))
    exception, _ = event.pop("exception", ""), event.pop("timestamp", None)
    texts = {key: _text(value) for key, value in event.items()}
    about = " ".join(f"{key}={text}" for key, text in texts.items())
    message = "\n".join(filter(None, (f"{what} {about}".rstrip(), exception)))
    fields = {"MESSAGE": message, "PRIORITY": str(_PRIORITIES.get(level, 6)), "SYSLOG_IDENTIFIER": "kzconsumer"}
    fields["KZCONSUMER_EVENT"] = what
    for key, text in texts.items():
        fields[f"KZCONSUMER_{_NO_FIELD.sub('_', key.upper())}"] = text
    return fields


class Journal:
    """A logger for structlog: each level takes fields. Lines that the journal refuses go to standard error."""

    def __init__(self) -> None:
        from logging_journald import JournaldTransport

        self._transport = JournaldTransport(SOCKET, connected=False)
        weakref.finalize(self, self._transport.socket.close)

    def msg(self, **fields: str) -> None:
        try:
            self._transport.send(fields.items())
        except OSError as error:
            print(f"{fields['MESSAGE']} (not in the journal: {error.strerror})", file=sys.stderr)

    debug = info = warning = error = critical = exception = log = msg


class JournalHandler(logging.Handler):
    """For the standard library's logging; its formatter makes the fields."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.msg(**json.loads(self.format(record)))


def fields_as_text(logger: object, method: str, fields: EventDict) -> str:
    """A processor, the last for JournalHandler: the standard library's formatters make text."""
    return json.dumps(fields)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# Counts of warnings and errors by log event, with the last reason of each, secrets hidden.

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
        require_journal()
        journal = Journal()
        render = [journal_fields]
        handler, logger, of_libraries = JournalHandler(journal), lambda: journal, [fields_as_text]
    elif readable:
        # Where `rich` is installed, structlog would show the values of variables, which may be records or passwords.
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
