"""Tracebacks of failed batches on standard error, for the author of a function: each once per batch."""

from __future__ import annotations

import re
import sys
import traceback
from typing import Final

# Numbers and generated names change from one attempt to the next: tasks, stages, directories.
_VOLATILE: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}|\d+")


class Tracebacks:
    """Printed to standard error."""

    def __init__(self) -> None:
        self._batch: int | None = None
        self._printed: set[str] = set()

    def report(self, batch: int, error: BaseException) -> None:
        """Unless this batch has failed in this way before."""
        if batch != self._batch:
            self._batch, self._printed = batch, set()
        text = "".join(traceback.format_exception(error))
        same = _VOLATILE.sub("#", text)
        if same not in self._printed:
            self._printed.add(same)
            print(text, end="", file=sys.stderr, flush=True)
