"""The alarm of pytest-timeout is held while a report is made: what it raises there would end the whole run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

LEAST = 10.0
"""Seconds until it rings at the earliest afterwards: in the test's teardown, not between the hooks before it."""


@contextmanager
def held_alarm() -> Iterator[None]:
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left, LEAST))
