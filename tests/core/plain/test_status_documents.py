"""All that the status server says of one member, to the letter: `status_documents.txt` has its documents and metrics.

Every figure of the report is another one, and of partitions there is one in each state, so that nothing can stand in
the place of something else. After an intended change,
`python -m tests.core.plain.test_status_documents` rewrites the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from prometheus_client.core import Metric

from kzconsumer.counters import Counters, Rebalance
from kzconsumer.lag.partition import Measured, Why
from kzconsumer.logs.setup import Trouble
from kzconsumer.offsets.progress import Position
from kzconsumer.sinks.runner import BatchCounters, BatchStatus
from kzconsumer.status.metrics import families
from kzconsumer.status.observer import Observer
from kzconsumer.status.partition_health import ListedLog, PartitionStatus, Track, behind_sink
from kzconsumer.status.report import (
    Assigned,
    BlockedClaim,
    Failing,
    GroupMember,
    Queue,
    Report,
    SinkBatch,
    degraded,
    examination,
    point,
)
from kzconsumer.status.status_server import DOCUMENTS

PAGE = Path(__file__).with_name("status_documents.txt")
WALL = 1_700_000_000.0
LOOKS, APART = 21, 4.0
"""Observations of each partition, and seconds between two: rates are sums of halves and quarters, which are exact."""
NOW = LOOKS * APART


def looked_at(
    number: int, *, growth: float = 0.0, pace: float = 0.0, commits: float = 0.0, **fields: Any
) -> PartitionStatus:
    """A partition after its last look. In each `growth` offsets are produced, `pace` processed, `commits` committed.

    Of the fields `asked` is what its leader has answered, from the sixth look on; `commits_until`: the last look that
    finds a commit; `lease` whether it is held.
    """
    asked, written, until = fields.pop("asked", None), fields.pop("written", None), fields.pop("commits_until", LOOKS)
    lease = fields.pop("lease", True)
    first = Position(
        "orders", number, f"m-{number % 3}", 100 + number, 90 + number, 60 + number, 50 + number, 200 + number,
        leader=number % 4,
    )  # fmt: skip
    first = msgspec.structs.replace(first, **fields)
    at, track = first, Track(first, 0.0)
    for look in range(LOOKS):
        at = msgspec.structs.replace(
            first,
            processed=first.processed + int(pace * look),
            committed=None if first.committed is None else first.committed + int(commits * look),
            high_watermark=None if first.high_watermark is None else first.high_watermark + int(growth * look),
            high_watermark_at=fields.get("high_watermark_at", look * APART),
        )
        track.look(at, look * APART, asked=asked if look > 5 else None, committed=look <= until)
    return track.status(at, NOW - 2.0, WALL, lease, 60.0, lambda offset: written)


def partitions() -> Iterator[PartitionStatus]:
    moving = {"pace": 2.0, "commits": 2.0}
    yield looked_at(0, growth=1.0, **moving)
    yield looked_at(1, growth=4.0, **moving, written=int(WALL - 33) * 1000)
    yield looked_at(2, processed=202, committed=202, consumed=202, fetched=202)
    yield looked_at(3)  # stalled: the sink
    yield looked_at(4, consumed=64, queue_full=True)
    yield looked_at(5, consumed=65)  # it waits behind the sink, too
    yield looked_at(6, fetched=66, consumed=66, throttled=True)
    yield looked_at(7, fetched=67, consumed=67, rate_limited=True)
    yield looked_at(8, fetched=68, consumed=68)
    yield looked_at(9, paused=True, high_watermark_at=20.0, asked=ListedLog(Measured(80, 83.0), Measured(400, 83.0)))
    yield looked_at(10, led=False, leader=None, asked=Why("no leader", 25.0))
    yield looked_at(11, failed=True)
    yield looked_at(12, high_watermark=None, fetched=None, committed=None, high_watermark_at=None)
    yield looked_at(13, growth=1.0, **moving, asked=Why("brokers unreachable", 25.0, "refused"), high_watermark_at=25.0)
    yield looked_at(14, growth=1.0, pace=2.0)  # commits stall
    yield looked_at(15, growth=1.0, pace=2.0, commits=-1.0)
    yield looked_at(16, growth=9.0, pace=1.0, commits=1.0)  # the log grows faster
    yield looked_at(17, end=150, growth=1.0, **moving)
    yield looked_at(18, hole_until=218, fetched=215, consumed=215, processed=215, committed=215)
    yield looked_at(19, growth=1.0, **moving, held_back=7)
    yield looked_at(20, growth=1.0, **moving, commits_until=3, lease=False)
    yield looked_at(21, processed=300, consumed=300, fetched=300, committed=300)  # after the log's end


def report() -> Report:
    return Report(
        version="1.2.3",
        started=WALL - 1000,
        cluster="zk1:2181",
        group="g",
        member="m",
        state="consuming 22 partitions",
        joined=True,
        alive=None,
        session="held",
        generation=7,
        members=[
            GroupMember("m", True, True, "static", {"orders": 3}, "h:9308", {"m-0": ["orders-0", "orders-3"]}),
            GroupMember("o", False, False, "white_list", {"o.*": 1}, "", {}),
        ],
        assigned=[Assigned("orders", 0, "m-0"), Assigned("orders", 31, "o-0")],
        partitions=behind_sink(list(partitions()), sink_busy=False),
        blocked=[BlockedClaim("orders", 31, "owned by x"), BlockedClaim("orders", 32, "owned by x")],
        unreadable=True,
        commits_fail=Failing(WALL - 61, "refused"),
        rebalances_fail=Failing(WALL - 62, "a node is there"),
        queues=[Queue(None, 0, 2, 300, 1000), Queue("orders", 1, 3, 301, 1001)],
        batch=SinkBatch(["orders-0 60-70"], 10, "write", {"collect": 1.5}, False, None),
        batches=[SinkBatch(["orders-0 50-60"], 11, "done", {"collect": 2.5, "write": 0.25}, True, WALL - 63)],
        sink={"files": 12},
        missing=("absent",),
    )


def counters() -> Counters:
    made = Counters()
    for broker, seconds in ((1, 0.003), (1, 0.2), (2, 99.0)):
        of = made.of_broker(broker)
        of.requests.add(seconds)
        of.decoding.add(seconds / 10)
        of.throttled.add(seconds / 2)
        of.bytes += 1000 + broker
    made.records.update({"orders": 42, "pay": 43})
    made.bytes.update({"orders": 4200, "pay": 4300})
    made.commits.offsets["zookeeper", "stored"] += 5
    made.commits.offsets["kafka", "refused"] += 6
    made.rejected["ValueError", "skip"] += 8
    for reason, outcome, moved in (("members", "done", 1), ("owner of t-3", "done", 0), ("topics", "blocked", 0)):
        made.rebalances.add(Rebalance(WALL - 70, 0.2, (reason,), cast("Any", outcome), 1, moved=moved))
    return made


def batches() -> BatchCounters:
    made = BatchCounters()
    for written, records in ((True, 11), (False, 12), (False, 0)):
        status = SimpleNamespace(written=written, records=records, seconds={"collect": 2.5, "write": 0.25})
        made.add(cast("BatchStatus", status))
    return made


def page() -> str:
    of, troubles = report(), [Trouble("error", "commit failed", 3, 0.0, 1.0, "why")]
    fewer = msgspec.structs.replace(of, partitions=of.partitions[::4])
    metrics = samples(families(fewer, counters(), batches(), troubles))
    history = [point(WALL, of.partitions), point(WALL + 5, of.partitions[:3])]
    observer = cast("Observer", SimpleNamespace(counters=counters(), history=history))
    shown = {name: DOCUMENTS[name](observer, of) for name in DOCUMENTS if name not in ("errors", "config")}
    for change in ({"alive": "it is stuck"}, {"session": "doubtful", "session_reason": "refused"}, {"joined": False}):
        other = msgspec.structs.replace(of, **cast("Any", change))
        shown[str(change)] = (other.unready, examination(other), degraded(other))
    documents = ["\n".join([name, *lines(msgspec.to_builtins(each)), ""]) for name, each in shown.items()]
    return "\n".join([*documents, *metrics, ""])


def samples(found: Iterable[Metric]) -> Iterator[str]:
    """Each family with its samples."""
    for family in found:
        yield f"{family.type} {family.name}: {family.documentation}"
        yield from (f"  {each.name} {json.dumps(each.labels)} {each.value}" for each in family.samples)


def lines(document: Any) -> Iterator[str]:
    """A line for each key, and each item of a list."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        if isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value):
            yield from (f"  {key}: {json.dumps(each)}" for each in value)
        else:
            yield f"  {key}: {json.dumps(value)}"


def test_every_figure_is_in_its_place() -> None:
    assert page() == PAGE.read_text()


if __name__ == "__main__":
    PAGE.write_text(page())
