"""Durations and byte sizes: text with a unit in the file, seconds and bytes in the settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+)(B|kB|MB|GB|KiB|MiB|GiB)", re.ASCII)
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def read_duration(value: object) -> float:
    """Text such as "6s", "500ms", "2m" or "1h" in seconds. Raises ValueError for anything else, bare numbers too."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('is not a duration such as "10s", "500ms"')
    return float(match[1]) * _SECONDS[match[2]]


def _read_positive_duration(value: object) -> float:
    seconds = read_duration(value)
    if seconds == 0:
        raise ValueError('must be longer than 0, such as "500ms" or "10s"')
    return seconds


def read_byte_size(value: object) -> int:
    """A whole number of bytes, or text such as "1MiB" (2**20) or "64kB" (64,000). Raises ValueError otherwise."""
    if type(value) is int and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('is not a size such as "1MiB", "64kB" or a whole number of bytes')
    return int(match[1]) * _BYTES[match[2]]


def show_duration(seconds: float) -> str:
    """The form that `read_duration` accepts, in the largest unit without a fraction."""
    for unit in ("h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds * 1000:.9f}".rstrip("0").rstrip(".") + "ms" if seconds else "0s"


def show_byte_size(size: int) -> str | int:
    """The form that `read_byte_size` accepts, in the largest binary unit without a fraction, or the number."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return size


def reader(function: Callable[[object], object], show: Callable[[Any], object] | None = None) -> Meta:
    """For `Annotated[T, reader(f)]`: `f` converts the raw value to the field's, `show` converts it back.

    Its ValueError is the rest of a sentence that begins with the value: "is not ...".
    """
    return Meta(extra={"read": function, "show": show})


#: Field type: seconds, written as text with a unit.
Duration = Annotated[float, reader(read_duration, show_duration)]
#: Field type: the same, and more than nothing.
PositiveDuration = Annotated[float, Meta(gt=0), reader(_read_positive_duration, show_duration)]
#: Field type: bytes, written as a number or as text with a unit.
ByteSize = Annotated[int, reader(read_byte_size, show_byte_size)]
