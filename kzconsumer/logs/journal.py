"""Log lines in systemd's journal: each key is the field KZCONSUMER_<KEY>, MESSAGE is the whole line as text."""

from __future__ import annotations

import json
import logging
import re
import sys
import weakref
from pathlib import Path
from typing import Final

from structlog.typing import EventDict

from kzconsumer.errors import ConfigError

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
