"""Which optional capabilities of a sink are detected."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from kzconsumer.model import RangeIdentity
from kzconsumer.offsets.start_rules import Destination
from kzconsumer.sinks import capabilities as capabilities_module
from kzconsumer.sinks.capabilities import KNOWN, capabilities, misspelt
from kzconsumer.sinks.interface import (
    Accountable,
    Batch,
    Checkable,
    Previewing,
    Pulling,
    Redirectable,
    SettingAside,
    Sink,
    Trying,
)
from kzconsumer.sinks.range_plans import destination_of


class Plain:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def write(self, batch: Batch) -> None: ...


class Everything(Plain):
    fingerprint = "f"
    destination = "a table"
    remembers = True
    start_limit = 3000.0
    batch_bytes = 1000
    due_records = 5

    def __init__(self) -> None:
        self.last_batch: dict[str, object] = {}
        self.status: dict[str, object] = {}

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return ranges

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        return True

    def check(self) -> None: ...


def test_a_sink_that_only_writes() -> None:
    can = capabilities(Plain())
    assert (can.wants, can.start_limit, can.last_batch(), can.status(), can.destination) == (
        "columns",
        0.0,
        {},
        {},
        None,
    )
    assert (can.batch_bytes, can.due_records) == (sys.maxsize, sys.maxsize)
    assert (can.set_aside, can.check, can.previews, can.accounts) == (None,) * 4
    assert destination_of("plain", can) is None


async def test_a_sink_with_all_capabilities() -> None:
    sink = Everything()
    can = capabilities(sink)
    assert can.destination is sink
    assert (can.start_limit, can.batch_bytes, can.remembers(), can.described()) == (3000.0, 1000, True, "a table")
    assert can.due_records == 5
    sink.last_batch["rows"] = 3
    assert can.last_batch() == {"rows": 3}
    sink.status["page"] = "http://localhost"
    assert can.status() == {"page": "http://localhost"}
    assert (can.set_aside, can.check) == (sink.set_aside, sink.check)
    destination = destination_of("everything", can)
    assert str(destination) == "sink everything (a table)"
    assert destination is not None
    assert destination.remembers
    assert await destination.set_aside(RangeIdentity("t", 0, 1, 0, 0, 5), 5)


def test_a_misspelt_capability_is_named() -> None:
    class Misspelt(Everything):
        replayble = True
        set_asides = None
        want = "ranges"
        due_record = 5
        state = "the sink's own"
        path = "the sink's own"
        records = 0
        _fingerprint = "the sink's own"

    meant = {"replayble": "fingerprint", "set_asides": "set_aside", "want": "wants", "due_record": "due_records"}
    assert misspelt(Misspelt()) == meant
    assert misspelt(Everything()) == {}


def test_all_that_is_looked_for_is_known() -> None:
    """Or its right name would be taken for a mistake."""
    looked_for = set(re.findall(r'getattr\(sink, "(\w+)"', inspect.getsource(capabilities_module)))
    for protocol in (
        Sink,
        Destination,
        Pulling,
        SettingAside,
        Trying,
        Checkable,
        Previewing,
        Accountable,
        Redirectable,
    ):
        looked_for |= {name for name in vars(protocol) if not name.startswith("_")}
    assert len(looked_for) > 12
    assert looked_for <= KNOWN
