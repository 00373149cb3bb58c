"""What foreachBatch does with a batch: the interface of the destinations, each of which has a file of its own.

Owns no state. The worker makes one `Destination` (files and tables have files of their own) and calls `write` from
foreachBatch; what it raises fails the batch. None of them will call anything with zero rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kzconsumer_spark.pipe.messages import SpooledRange


class Written(NamedTuple):
    """Rows written now; ranges that this write published, and ranges that were there already."""

    rows: int
    published: int
    present: int


class Destination(Protocol):
    def write(self, number: int, ranges: Sequence[SpooledRange]) -> Written: ...

    def close(self) -> None: ...
