"""Texts of others made safe for a terminal: names, patterns and contents of nodes may hold escape sequences."""

from __future__ import annotations

import operator
from typing import TypeVar

import msgspec

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
