"""A slice of `python -m tests.simulate`, the same by day; `make thorough` and `make simulate` search from others."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.extent import NIGHTLY, extent

MINUTES = float(os.environ.get("KZCONSUMER_SIMULATE_MINUTES", extent("0.02", "20")))
"""Of processor time: twenty schedules a second."""
LIMIT = 600.0
"""Seconds more: the last seed is searched to its end."""
BUSY = 5
"""Minutes that one of processor time may take on a busy machine."""


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 * BUSY + LIMIT)
def test_random_schedules_break_no_promise(record_property: Any) -> None:
    """In a process of its own, whose sets have the same order each time the seed is repeated."""
    first = 0 if NIGHTLY is None else NIGHTLY
    record_property("seed", first)
    command = [sys.executable, "-m", "tests.simulate", "--minutes", str(MINUTES), "--first", str(first)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-50_000:] + done.stderr
