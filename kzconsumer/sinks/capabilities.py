"""What a sink can do beyond `write`. The only place that looks for the optional parts of a sink."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

import msgspec

from kzconsumer.errors import PluginError
from kzconsumer.model import RangeIdentity, Wants
from kzconsumer.offsets.destination import Destination
from kzconsumer.sinks.interface import Batch, Checkable, Preparing, Pulling, RangeData, SettingAside, Sink, Trying
from kzconsumer.sinks.reports import Accountable, Previewing
from kzconsumer.sinks.sink_faults import sink_faults


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Found once for a sink. None stands for what the sink does not have."""

    wants: Wants
    start_limit: float
    """Seconds that entering may take; 0 without the attribute."""
    batch_bytes: int
    """Bytes at which a batch is full, whatever the settings allow; no limit without the attribute."""
    due_records: int
    """Records with which a batch is due before it is full; no limit without the attribute."""
    last_batch: Callable[[], Mapping[str, object]]
    """What the sink adds to the log line of the batch just written."""
    status: Callable[[], Mapping[str, object]]
    """What the sink shows on the status pages."""
    destination: Destination | None
    """The sink itself, if it is replayable."""
    described: Callable[[], str]
    """The destination's name in errors; may be empty."""
    remembers: Callable[[], bool]
    """See `Destination.remembers`."""
    prepare: Callable[[Batch], Awaitable[None]] | None
    asked: Callable[[], Awaitable[None]] | None
    set_aside: Callable[[RangeIdentity, int], Awaitable[bool]] | None
    trial: Callable[[Batch], Awaitable[None]] | None
    range_lost: Callable[[RangeData], None]
    """Called during `write` when a range of its batch is lost: another member may write it."""
    check: Callable[[], None] | None
    previews: Previewing | None
    accounts: Accountable | None


def capabilities(sink: Sink) -> Capabilities:
    """Raises PluginError if the object is not a sink, or if what it declares contradicts itself."""
    if faults := sink_faults(sink):
        raise PluginError("; ".join(faults))
    replayable = bool(getattr(sink, "fingerprint", ""))
    return Capabilities(
        wants=getattr(sink, "wants", "columns"),
        start_limit=getattr(sink, "start_limit", 0.0),
        batch_bytes=getattr(sink, "batch_bytes", sys.maxsize),
        due_records=getattr(sink, "due_records", sys.maxsize),
        last_batch=lambda: getattr(sink, "last_batch", {}),
        status=lambda: getattr(sink, "status", {}),
        destination=cast(Destination, sink) if replayable else None,
        described=lambda: getattr(sink, "destination", ""),
        remembers=lambda: bool(getattr(sink, "remembers", False)),
        prepare=sink.prepare if isinstance(sink, Preparing) else None,
        asked=sink.asked if isinstance(sink, Pulling) else None,
        set_aside=sink.set_aside if isinstance(sink, SettingAside) else None,
        trial=sink.trial if replayable and isinstance(sink, Trying) else None,
        range_lost=getattr(sink, "range_lost", lambda part: None),
        check=sink.check if isinstance(sink, Checkable) else None,
        previews=sink if isinstance(sink, Previewing) else None,
        accounts=sink if isinstance(sink, Accountable) else None,
    )
