"""The JSON of znodes: whatever anybody has written there, reading it ends in a value or in a ValueError.

Every JSON node of ZooKeeper is read by this one function.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

MOST_BYTES = 8 << 20
"""Of a node; a server takes 1 MiB unless `jute.maxbuffer` says otherwise."""


@overload
def read_json(data: bytes) -> Any: ...
@overload
def read_json(data: bytes, kind: type[T]) -> T: ...
def read_json(data: bytes, kind: Any = Any) -> Any:
    """The value. Raises ValueError, with a short reason, also for what is too large or nested too deeply."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"{len(data)} bytes are more than are read of a node ({MOST_BYTES})")
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Its values may be nested: nothing may be shown or converted of them that was not looked at."""
    try:
        fields = read_json(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields
