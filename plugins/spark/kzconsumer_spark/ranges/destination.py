"""What the worker calls with the ranges of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kzconsumer_files.writer import Written
from kzconsumer_spark.pipe.messages import SpooledRange


class Destination(Protocol):
    """Writes batches. An exception fails the batch; nothing is written of ranges without records."""

    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written: ...

    def close(self) -> None: ...
