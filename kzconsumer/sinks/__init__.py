"""Sinks and what runs them. The names below are the interface for authors of sinks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kzconsumer.records.columns import SCHEMA
    from kzconsumer.sinks.function_reference import load_async_function, load_function, load_plain_function
    from kzconsumer.sinks.interface import (
        Batch,
        Checkable,
        Preparing,
        RangeData,
        RecordsRejected,
        Rejected,
        SettingAside,
        Sink,
        SinkContext,
        SinkPlugin,
    )
    from kzconsumer.sinks.reports import (
        Accountable,
        BadRecord,
        HeldRange,
        Holdings,
        Preview,
        Previewing,
        Redirectable,
    )
    from kzconsumer.sinks.steps import StepNotRecorded, Steps, check_step

_HOME = {
    "SCHEMA": "records.columns",
    **dict.fromkeys(("load_async_function", "load_function", "load_plain_function"), "sinks.function_reference"),
    **dict.fromkeys(("Batch", "Checkable", "RangeData", "RecordsRejected", "Rejected"), "sinks.interface"),
    **dict.fromkeys(("Preparing", "SettingAside", "Sink", "SinkContext", "SinkPlugin"), "sinks.interface"),
    **dict.fromkeys(("Accountable", "BadRecord", "HeldRange", "Holdings"), "sinks.reports"),
    **dict.fromkeys(("Preview", "Previewing", "Redirectable"), "sinks.reports"),
    **dict.fromkeys(("StepNotRecorded", "Steps", "check_step"), "sinks.steps"),
}

__all__ = [
    "SCHEMA",
    "Accountable",
    "BadRecord",
    "Batch",
    "Checkable",
    "HeldRange",
    "Holdings",
    "Preparing",
    "Preview",
    "Previewing",
    "RangeData",
    "RecordsRejected",
    "Redirectable",
    "Rejected",
    "SettingAside",
    "Sink",
    "SinkContext",
    "SinkPlugin",
    "StepNotRecorded",
    "Steps",
    "check_step",
    "load_async_function",
    "load_function",
    "load_plain_function",
]


def __getattr__(name: str) -> object:
    # Imported on first use: only processes that handle records need pyarrow and numpy.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"kzconsumer.{_HOME[name]}"), name)
