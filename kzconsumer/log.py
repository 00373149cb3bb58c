"""Where log lines go: readable on a terminal, one JSON object a line otherwise, always on standard error.

Owns the process-wide setup of structlog and of the standard library's logging, which libraries write to. `cli` calls
it once; modules take `structlog.get_logger()`. As a library we leave the set-up to the application, if it has one.
"""

from __future__ import annotations

import logging
import os
import sys

import structlog
from structlog.typing import EventDict, Processor

from kzconsumer.troubles import TROUBLES

_QUIET = ("aiozk", "numba", "py4j", "asyncio")


def to_standard_error(level: str) -> None:
    """For an application that has not set up structlog: what is at least `level` goes to standard error."""
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
            # The stream of the moment, at each line: an application may replace sys.stderr.
            logger_factory=lambda *name: structlog.PrintLogger(sys.stderr),
        )


def for_one_answer() -> None:
    """A command that gives one answer: what it could not read is a line, as its errors are; what it waits for is none.

    Without an answer its error tells why.
    """
    configure("error", "line")


def configure(level: str, format: str) -> None:
    """Send what is at least `level` (debug, info, warning, error) to standard error.

    `format` is console, json, or auto: console if standard error is a terminal; or line: as errors are told. Libraries
    that tell their inner life are held at warning.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    terminal = sys.stderr.isatty()
    readable = format == "console" or (format == "auto" and terminal)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        TROUBLES,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if readable else "iso", utc=not readable),
    ]
    render: list[Processor]
    if format == "line":
        render = [structlog.processors.format_exc_info, _line]
    elif readable:
        colors = terminal and "NO_COLOR" not in os.environ
        render = [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]
    else:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]

    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *name: structlog.WriteLogger(sys.stderr),  # the stream of the moment
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(level=threshold, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    logging.captureWarnings(True)


def _line(logger: object, method: str, event: EventDict) -> str:
    """`kzconsumer: <what>: <key> <value>, ...`, and a traceback where there is one."""
    what, exception = event.pop("event"), event.pop("exception", "")
    about = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("level", "timestamp"))
    told = f"kzconsumer: {what}: {about}" if about else f"kzconsumer: {what}"
    return f"{told}\n{exception}" if exception else told
