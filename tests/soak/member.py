"""`python -m tests.soak.member --config FILE`: the daemon, which writes its number of tasks at SIGUSR1."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from kzconsumer.cli.main import main

TASKS = "KZCONSUMER_SOAK_TASKS"
"""The variable that names the file."""


def write_tasks(*_: object) -> None:
    """Between two iterations of the loop, in its thread."""
    try:
        number = len(asyncio.all_tasks())
    except RuntimeError:  # no loop yet, or no longer
        return
    Path(os.environ[TASKS]).write_text(f"{number}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, write_tasks)
    sys.exit(main())
