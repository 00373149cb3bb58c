"""A slice of `python -m tests.simulate`; `make nightly` searches from its own seed, and for longer."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.support.extent import NIGHTLY, extent

FIRST = 5000
MINUTES = extent(0.2, 20.0)
LIMIT = 600.0
"""Seconds more: the last seed is searched to its end, on a machine that may be busy."""


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + LIMIT)
def test_random_schedules_break_no_promise(record_property: Any) -> None:
    """In a process of its own, whose sets have the same order each time the seed is repeated."""
    first = FIRST if NIGHTLY is None else NIGHTLY
    record_property("seed", first)
    command = [sys.executable, "-m", "tests.simulate", "--minutes", str(MINUTES), "--first", str(first)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-50_000:] + done.stderr
