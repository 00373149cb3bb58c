"""Sinks and what runs them. Read `interface` (for authors), then `runner`, which also says what a stop does to a batch.

- What a sink can do: `capabilities`; how an error that it raises is named: `sink_failures`. The core's own: `builtin`.
- A batch: `batch_builder` cuts it at the limits of `[batch]` (records, bytes, time); `range_plans` stores what is about
  to be written, and asks the destination. `batch_writer` writes it, and decides what follows a failure: without the
  records that are refused, range by range, or into `quarantine`, which only keeps files.
- `sink_rejections`: single records, named by the sink or searched for (skipped or dead letters: `kzconsumer.rejected`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kzconsumer.plugins import load_async_function, load_function, load_plain_function
from kzconsumer.records.forms import ColumnRecords
from kzconsumer.sinks.interface import (
    Accountable,
    BadRecord,
    Batch,
    Checkable,
    HeldRange,
    Holdings,
    Preview,
    Previewing,
    Pulling,
    RangeData,
    RecordsRejectedError,
    Redirectable,
    Rejected,
    SettingAside,
    Sink,
    SinkContext,
    SinkPlugin,
    StepNotRecordedError,
    Steps,
    Trying,
    check_step,
)

if TYPE_CHECKING:
    from kzconsumer.records.columns import SCHEMA

__all__ = [
    "SCHEMA",
    "Accountable",
    "BadRecord",
    "Batch",
    "Checkable",
    "ColumnRecords",
    "HeldRange",
    "Holdings",
    "Preview",
    "Previewing",
    "Pulling",
    "RangeData",
    "RecordsRejectedError",
    "Redirectable",
    "Rejected",
    "SettingAside",
    "Sink",
    "SinkContext",
    "SinkPlugin",
    "StepNotRecordedError",
    "Steps",
    "Trying",
    "check_step",
    "load_async_function",
    "load_function",
    "load_plain_function",
]


def __getattr__(name: str) -> object:
    # Imported when first used: it loads pyarrow, which sinks that take messages do without.
    if name != "SCHEMA":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kzconsumer.records.columns import SCHEMA

    return SCHEMA
