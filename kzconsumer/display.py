"""Texts for people: figures, values without their secrets, and names that are safe for a terminal.

Figures are `1,234 records`, `2 min 5 s`, `2026-01-31T12:00:00Z`; `-` is unknown. Counts have separators. The status
page prints the same texts (`status/browser/words.js`), so halves are rounded up here as JavaScript does. Offsets, ids
and partition numbers have none, since they are copied into other commands.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def plural(number: int | None, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def some(names: Iterable[str], most: int = 5) -> str:
    """The first `most` of them, and how many more there are."""
    shown = list(names)
    more = len(shown) - most
    return ", ".join(shown[:most]) + (f" and {count(more)} more" if more > 0 else "")


def rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    return f"{_tenths(per_second):g}/s" if per_second < 10 else f"{_nearest(per_second):,}/s"


def span(seconds: float | None) -> str:
    """A duration in at most two units."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{max(1, _nearest(seconds * 1000))} ms" if seconds else "0 s"
    if seconds < _MINUTE:
        return f"{_tenths(seconds):g} s" if seconds < 10 else f"{_nearest(seconds)} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE // 1:.0f} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds // _DAY:.0f} d {seconds % _DAY // _HOUR:.0f} h"


def _nearest(number: float) -> int:
    return math.floor(number + 0.5)


def _tenths(number: float) -> float:
    return _nearest(number * 10) / 10


def moment(at: datetime | None) -> str:
    """In UTC, to the second."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


# Secrets are recognised by the name of a key, or by the form of a text. Our own settings only name files and variables;
# options of plugins and pasted text may hold the secret itself.

HIDDEN = "(hidden)"

_SECRET = re.compile(r"passw|secret|token|credential|access.?key|api.?key|private.?key|account.?key", re.IGNORECASE)
_NAMES_ONE = re.compile(r"_(file|env)$")
# A password may hold "/" and "@", though it should not: up to the last "@", rather too much than too little. Before the
# "@" of an abfss URI is a container; `sig` is the signature of a shared access signature.
_IN_TEXT = re.compile(
    r"(?<=://)(?<!abfss://)\S+(?=@)|(?<=abfss://)[^\s@]*[:/]\S*(?=@)"
    r"|(?i:(?<=password=)|(?<=secret=)|(?<=token=)|(?<=[?&]sig=))[^&;\s]+"
    r"|(?i:(?<=\bbearer ))\S+|\beyJ[\w-]+\.[\w.-]+"
    r"|(?s:-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z))"
)


def is_secret(name: str) -> bool:
    """Whether a key of that name holds a secret itself, not the name of a file or variable."""
    return _SECRET.search(name) is not None and _NAMES_ONE.search(name) is None


def redacted(value: Any) -> Any:
    """The value with HIDDEN for secrets: values of keys with such names, and parts of texts."""
    match value:
        case Mapping():
            return {name: HIDDEN if is_secret(str(name)) else redacted(inner) for name, inner in value.items()}
        case list() | tuple():
            return [redacted(inner) for inner in value]
        case str():
            return redacted_text(value)
    return value


def redacted_text(text: str) -> str:
    """The text with HIDDEN for users and passwords of URLs, values after `password=` and the like,
    JSON Web Tokens and private keys.
    """
    return _IN_TEXT.sub(HIDDEN, text)


# Names, patterns and contents of nodes are texts of others: they may hold escape sequences for a terminal.

T = TypeVar("T")


def printable(text: str) -> str:
    """The text with what is not printable escaped as in Python: controls, line ends, changes of writing direction."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def all_printable(value: T) -> T:
    """The value with `printable` applied to every text inside its structs, collections and mappings."""
    made: object = value
    if isinstance(value, str):
        made = printable(value)
    elif isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: new for name, old in fields.items() if (new := all_printable(old)) is not old}
        made = msgspec.structs.replace(value, **changed) if changed else value
    elif isinstance(value, dict):
        made = {all_printable(name): all_printable(inner) for name, inner in value.items()}
    elif isinstance(value, tuple):
        inner = [all_printable(each) for each in value]
        if not all(map(operator.is_, inner, value)):
            made = type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    elif isinstance(value, list):
        made = [all_printable(each) for each in value]
    return made  # type: ignore[return-value]  # a value of the same type
