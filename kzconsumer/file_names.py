"""Names of files and objects that contain a topic: shortened where a file system refuses the whole name.

Kafka allows topics of 249 characters, file systems names of 255 bytes. A name that fits is never changed, so what is on
disk stays valid. `@` cannot be in a topic: a shortened name is never that of another topic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

MOST_BYTES: Final = 255
"""Of one component of a path, on every file system that is in use."""
_READABLE: Final = 100
_HASHED: Final = "@"


def short(name: str) -> str:
    """At most 117 characters: the beginning of a longer name, `@`, and 16 hexadecimal digits that stand for it."""
    if len(name) <= _READABLE:
        return name
    return f"{name[:_READABLE]}{_HASHED}{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"


def is_short(name: str) -> bool:
    """Whether `short` has made it of a longer one, which it does not tell."""
    return _HASHED in name


def named_after(topic: str, name: Callable[[str], str], most: int = MOST_BYTES) -> str:
    """`name(topic)`; with a short name of the topic if that has more than `most` bytes."""
    whole = name(topic)
    return whole if len(whole.encode()) <= most else name(short(topic))
