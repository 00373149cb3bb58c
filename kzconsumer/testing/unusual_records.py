"""Keys and values that Kafka stores and that a sink may not expect."""

from __future__ import annotations

from typing import Literal, NamedTuple

Values = Literal["any", "text"]

LARGE = 1_000_000
"""The greatest value that a broker accepts by default is a little larger."""


class Content(NamedTuple):
    """`value` is appended to the text that identifies the record; None and b"" replace it."""

    key: bytes | None
    value: bytes | None


_TEXT = (
    Content(None, b" null key"),
    Content(b"lines\nof\r\nkey", b" lines\nof\r\nvalue\n"),
    Content(b'a,"b";\tc', b" a,\"b\";\t'c'\\"),
    Content("schlüssel ☃".encode(), " größe ☃".encode()),
    Content(b"large", b" " + b"x" * LARGE),
)
_BYTES = (
    Content(b"null value", None),
    Content(b"empty value", b""),
    Content(b"", b" empty key"),
    Content(b"\xff\x00\x80", b" key is not UTF-8"),
    Content(b"key", b" not UTF-8: \xff\x00\x80"),
)


def unusual(values: Values) -> tuple[Content, ...]:
    """With "text" only those that are UTF-8 and neither empty nor, for a value, null."""
    return _TEXT if values == "text" else _TEXT + _BYTES
