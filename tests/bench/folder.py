"""The directory of a measurement: its servers' data and what is written, gigabytes that must not stay."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def bench_folder() -> Iterator[Path]:
    """Removed in the end, which SIGTERM brings about as well: it raises SystemExit. For the main thread."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        with tempfile.TemporaryDirectory(prefix="kzconsumer-bench-") as folder:
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not end what the first one has begun
    sys.exit(128 + number)
