"""The two pipes between the daemon and its worker process, as the worker has them."""

from __future__ import annotations

import os
from typing import BinaryIO


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the two pipes for ourselves: no child, no print and no JVM can read or write them."""
    commands, events = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(commands, "rb"), os.fdopen(events, "wb")
