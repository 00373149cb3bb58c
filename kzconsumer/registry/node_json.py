"""Reads the JSON of znodes, which any program may have written: a value or a ValueError."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

MOST_BYTES = 8 << 20
"""Of a node; servers accept 1 MiB unless `jute.maxbuffer` is set."""


@overload
def read_json(data: bytes) -> Any: ...
@overload
def read_json(data: bytes, kind: type[T]) -> T: ...
def read_json(data: bytes, kind: Any = Any) -> Any:
    """The value. Raises ValueError with a short reason, also if it is too large or nested too deeply."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes are more than are read of a node ({MOST_BYTES})")
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Values may be nested deeply: do not show or convert one without checking its type."""
    try:
        fields = read_json(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields
