"""The one clock of the program: seconds of CLOCK_BOOTTIME, which continues while the machine is suspended.

A lease measured by a clock that stops in suspend would outlive the session it stands for.
"""

from __future__ import annotations

import time


def now() -> float:
    """Seconds since boot, suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
