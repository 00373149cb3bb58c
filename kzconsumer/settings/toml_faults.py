"""Explains why a text is not TOML: the place, the parser's reason and the likely meaning, without showing values."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

_AT = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_ASSIGNED = re.compile(r"\s*(?P<key>[\w.\"-]+)\s*=\s*(?P<value>.*?)\s*")
_MAPPED = re.compile(r"\s*[\w\"-]+\s*:.*")
_PROPERTY = re.compile(r"(?m)^\s*(?:zookeeper\.connect|group\.id)\s*[=:]\s*[^\s\"']")


def toml_faults(text: str, source: str) -> Iterator[str]:
    """One line for each fault, up to one that leaves open where the next statement begins; none for valid TOML."""
    if _PROPERTY.search(text):
        yield (
            f"{source}: is a configuration of the original consumer, not TOML; translate it with"
            f" `kzconsumer config import {source} >group.toml`"
        )
        return
    lines = text.split("\n")
    while (fault := _first(lines)) is not None:
        reason, number, column = fault
        written = lines[number - 1] if number <= len(lines) else ""
        meant = _meant(written, reason)
        yield f"{source}:{number}:{column}: is not TOML: {reason}{f'; {meant}' if meant else ''}"
        if meant is None or not written.strip():
            return
        lines[number - 1] = ""


def _first(lines: list[str]) -> tuple[str, int, int] | None:
    """The parser's reason, line and column."""
    try:
        tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as error:
        match = _AT.search(str(error))
        assert match is not None
        place = (int(match["line"]), int(match["column"])) if match["line"] else (len(lines), len(lines[-1]) + 1)
        return str(error)[: match.start()], *place
    return None


def _meant(line: str, reason: str) -> str | None:
    """What to write instead, for a statement that ends with its line."""
    if reason.startswith("Cannot"):
        return "this is given twice"
    if assigned := _ASSIGNED.fullmatch(line):
        key, value = assigned["key"], assigned["value"]
        if not value or value.startswith("#"):
            return f"{key} has no value"
        if value[0] not in "\"'[{":
            return f'text needs quotes: {key} = "..."'
        return None
    return "write key = value" if _MAPPED.fullmatch(line) else None
