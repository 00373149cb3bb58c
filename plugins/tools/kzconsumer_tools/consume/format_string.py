r"""Format strings for records, as kcat's `-f` has them: `%t %p %o %k %s\n`. Source: `kcat.c`, `format.c` (1.7.1)."""

from __future__ import annotations

import re

FIELDS = {
    "s": "value",
    "S": "size of the value in bytes, -1 without one",
    "R": "the same as a big-endian 32-bit integer, to frame binary values",
    "k": "key",
    "K": "size of the key in bytes, -1 without one",
    "T": "timestamp in ms since 1970, -1 without one",
    "h": "headers, as name=value,name=value",
    "t": "topic",
    "p": "partition",
    "o": "offset",
}
VALUE_LINES = r"%s\n"

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}
_SIGN = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|([^%\\]+)", re.DOTALL)

Format = tuple[bytes | str, ...]
"""Literal bytes, and letters of FIELDS."""


def read_format(text: str) -> Format:
    """Raises ValueError for an unknown field or escape."""
    parts: list[bytes | str] = []
    for sign in _SIGN.finditer(text):
        field, escape, plain = sign.groups()
        if field in FIELDS:
            parts.append(field)
            continue
        if field is not None and field != "%":
            raise ValueError(
                f"%{field} is not a field; the fields are {' '.join(f'%{each}' for each in FIELDS)} and %%"
            )
        literal = (
            b"%" if field else _escaped(escape) if escape is not None else plain.encode("utf-8", "surrogateescape")
        )
        if parts and isinstance(parts[-1], bytes):
            parts[-1] += literal
        else:
            parts.append(literal)
    return tuple(parts)


def _escaped(escape: str) -> bytes:
    if escape.startswith("x") and len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape not in _ESCAPES:
        raise ValueError(rf"\{escape} is not an escape; the escapes are \n \r \t \0 \\ and \xHH")
    return _ESCAPES[escape]
