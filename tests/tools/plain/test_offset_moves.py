"""Moves of stored offsets: clamped, counted, undone exactly; and files that round-trip."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import ClaimRecord, CommitMark, decode_claim_record, encode_claim_record
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Create, Delete, Node, SetData, Stat
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.node_changes import SavedNode, read_nodes, write_nodes
from kzconsumer_tools.offsets.offset_changes import (
    ChangedGroup,
    ChangedOffsets,
    OffsetChange,
    PartitionNodes,
    Reset,
    ResetKind,
    offset_in,
    reset,
)
from kzconsumer_tools.offsets.offset_files import SavedOffset, read_offsets, write_offsets
from kzconsumer_tools.tables.offset_tables import changes_table
from tests.support.plans import plan_of

# Few values, so that equal and neighbouring ones are frequent.
OFFSETS = st.integers(0, 12)
GROUP = GroupPaths("g")
PARTITION = TopicPartition("t", 0)
LEGAL = st.text("abcXYZ019._-", min_size=1, max_size=12).filter(lambda name: name not in {".", ".."})
PARTITIONS = st.builds(TopicPartition, LEGAL, st.integers(0, 40))
CONTENTS = st.one_of(OFFSETS.map(lambda offset: b"%d" % offset), st.sampled_from([b"-1", b"", b"x", b"007", b"\xff\n"]))
KINDS: st.SearchStrategy[ResetKind] = st.sampled_from(["earliest", "latest", "current", "offset", "shift", "time"])


def node(data: bytes, version: int) -> Node:
    return Node(data, Stat(1, 1, version, 0, 0, 0, 0, 0))


@st.composite
def records(draw: DrawFn) -> ClaimRecord:
    plan = None
    if draw(st.booleans()):
        first = draw(OFFSETS)
        plan = plan_of(first, first + draw(st.integers(1, 5)), offset_version=3, epoch=2)
    fingerprint = "f" if plan else draw(st.sampled_from(["", "f"]))
    record = ClaimRecord(1, "range", "0x2a", draw(st.integers(0, 3)), fingerprint, plan)
    if draw(st.booleans()):
        epoch = max(0, record.epoch - draw(st.integers(0, 1)))
        mark = CommitMark(until=draw(OFFSETS), incarnation="0x2a", epoch=epoch, fingerprint="f")
        record = msgspec.structs.replace(record, mark=mark)
    return record


def marked_until(record: ClaimRecord) -> int | None:
    mark = record.mark
    return mark.until if mark is not msgspec.UNSET and mark.epoch == record.epoch else None


@st.composite
def standings(draw: DrawFn) -> PartitionNodes:
    offset = draw(st.none() | CONTENTS)
    record = draw(st.none() | records())
    return PartitionNodes(
        PARTITION,
        None if offset is None else node(offset, draw(st.integers(0, 5))),
        None if record is None else node(encode_claim_record(record), draw(st.integers(0, 5))),
    )


@st.composite
def logs(draw: DrawFn) -> LogRange:
    start = draw(OFFSETS)
    return LogRange(start, start + draw(OFFSETS))


@given(standings(), KINDS, st.integers(-12, 24), logs(), st.none() | OFFSETS)
def test_a_reset_ends_in_the_log(
    standing: PartitionNodes, kind: ResetKind, amount: int, log: LogRange, at_time: int | None
) -> None:
    """As with Kafka's tool: the requested offset, or the nearest one in the log, which is reported."""
    to = Reset(kind, abs(amount) if kind == "offset" else amount)
    if kind == "shift" and standing.stored is None:
        with pytest.raises(ValueError, match="no stored offset to shift"):
            reset(standing, to, log, at_time)
        return
    move = reset(standing, to, log, at_time)
    shown = move.described()
    asked = {
        "earliest": log.start,
        "latest": log.end,
        "current": log.end if standing.stored is None else standing.stored,
        "offset": to.amount,
        "shift": (standing.stored or 0) + amount,
        "time": log.end if at_time is None else at_time,
    }[kind]
    assert shown.new is not None
    assert log.start <= shown.new <= log.end
    assert (shown.new == asked) == (shown.asked is None)
    if shown.asked is not None:
        assert shown.asked == asked
        assert not log.start <= asked <= log.end
    assert shown.old == standing.stored


@given(standings(), st.none() | CONTENTS)
def test_the_nodes_that_a_move_writes(standing: PartitionNodes, after: bytes | None) -> None:
    """Nothing if nothing changes; otherwise the offset and, if there is a claim record, its epoch and plan."""
    move = OffsetChange(standing, after)
    changes = move.changed(GROUP)
    shown = move.described()
    before = standing.offset.data if standing.offset else None
    record = standing.claim
    planned = record is not None and record.plan is not None
    marked = record is not None and marked_until(record) is not None  # members would continue there without it
    assert bool(changes) == shown.changes == (before != after or planned or marked)
    if not changes:
        assert shown.republished == 0
        return
    assert [change.path for change in changes] == (
        ["/consumers/g/offsets/t/0"] if record is None else ["/consumers/g/offsets/t/0", "/consumers/g/claims/t/0"]
    )
    assert (changes[0].before, changes[0].after) == (before, after)
    if record is not None:
        assert changes[1].after is not None
        left = decode_claim_record(changes[1].after)
        assert left == msgspec.structs.replace(record, epoch=record.epoch + 1, plan=None)
        assert marked_until(left) is None
        assert shown.epoch == record.epoch + 1


@given(standings(), st.none() | CONTENTS)
def test_ranges_that_a_destination_may_get_twice(standing: PartitionNodes, after: bytes | None) -> None:
    """Only a replayable sink's, and then everything from the new offset up to what it may have published."""
    shown = OffsetChange(standing, after).described()
    record = standing.claim
    if record is None or not shown.changes:
        assert shown.republished == 0
        return
    stored = standing.stored if record.fingerprint else None
    published = max(stored or 0, marked_until(record) or 0, record.plan.until if record.plan else 0)
    assert shown.republished == len(range((after and offset_in(after)) or 0, published))


@given(standings(), st.none() | CONTENTS)
def test_operations_apply_only_to_the_state_that_was_read(standing: PartitionNodes, after: bytes | None) -> None:
    for change in OffsetChange(standing, after).changed(GROUP):
        match change.operation():
            case Create(path, data):
                assert (change.seen, path, data) == (None, change.path, change.after)
            case SetData(path, data, version):
                assert change.seen is not None
                assert (path, data, version) == (change.path, change.after, change.seen.stat.version)
            case Delete(path, version):
                assert change.seen is not None
                assert (path, version, change.after) == (change.path, change.seen.stat.version, None)
            case None:
                assert change.before is change.after is None


@given(st.lists(st.tuples(LEGAL, st.none() | st.binary(max_size=30))))
def test_an_undo_file_has_the_previous_contents(places: list[tuple[str, bytes | None]]) -> None:
    content = dict(places)
    nodes = [SavedNode(f"/consumers/{name}", data) for name, data in content.items()]
    assert read_nodes(write_nodes(nodes)) == nodes


@given(LEGAL, st.dictionaries(PARTITIONS, CONTENTS, min_size=1))
def test_offsets_round_trip_through_their_file(group: str, offsets: dict[TopicPartition, bytes]) -> None:
    """Nodes may hold anything; Kafka's own formats hold numbers, and CSV cannot express a missing offset."""
    at = GroupPaths(group)

    def paths(some: dict[TopicPartition, bytes]) -> list[SavedNode]:
        return [SavedNode(at.offset(partition), data) for partition, data in some.items()]

    read = read_offsets(write_offsets("nodes", paths(offsets)))
    assert read.format == "nodes"
    assert list(read.offsets) == [SavedOffset(group, partition, data) for partition, data in offsets.items()]
    numbers = {partition: data for partition, data in offsets.items() if data.isdigit() or data == b"-1"}
    if numbers:
        read = read_offsets(write_offsets("zookeeper", paths(numbers)))
        assert read.format == "zookeeper"
        assert list(read.offsets) == [SavedOffset(group, partition, data) for partition, data in numbers.items()]
    stored = {partition: data for partition, data in numbers.items() if data != b"-1"}
    if stored:
        read = read_offsets(write_offsets("csv", paths(numbers)))
        assert read.format == "csv"
        assert [(each.group, each.partition, int(each.data or b"")) for each in read.offsets] == [
            (None, partition, int(data)) for partition, data in stored.items()
        ]


@given(st.binary(max_size=60))
def test_any_bytes_are_a_file_or_a_fault(content: bytes) -> None:
    for read in (read_offsets, read_nodes):
        with contextlib.suppress(ValueError):
            read(content)


OUTSIDE = [
    (b"999999", Reset("offset", 3_020), LogRange(0, 3_020), None, (0, 0), ""),
    (b"12", Reset("earliest"), LogRange(2_000, 5_008), None, (0, 0), ""),
    (b"12", Reset("latest"), LogRange(2_000, 5_008), None, (3_008, 0), ""),
    (b"4000", Reset("offset", 12), LogRange(2_000, 5_008), None, (0, 2_000), "not 12: outside the log"),
    (b"7000", Reset("offset", 5_000), LogRange(2_000, 5_008), None, (0, 8), ""),
    (None, Reset("latest"), LogRange(0, 12_464), None, (12_464, 0), ""),
    (None, Reset("earliest"), LogRange(5, 12_464), None, (0, 0), ""),
    (b"4", Reset("time", 1), LogRange(0, 10), None, (6, 0), "no record is so late: the end"),
    (None, Reset("current"), LogRange(3, 10), None, (7, 0), "no stored offset: the end"),
]


@pytest.mark.parametrize(("stored", "to", "log", "at_time", "counted", "note"), OUTSIDE)
def test_a_preview_counts_offsets_that_the_log_has(
    stored: bytes | None, to: Reset, log: LogRange, at_time: int | None, counted: tuple[int, int], note: str
) -> None:
    standing = PartitionNodes(PARTITION, None if stored is None else node(stored, 0), None)
    change = reset(standing, to, log, at_time).described()
    assert (change.skipped, change.repeated) == counted
    assert note in changes_table(ChangedOffsets(False, None, (ChangedGroup("g", None, (change,)),)), "")


@pytest.mark.parametrize("kind", ["earliest", "latest", "current", "offset", "shift", "time"])
def test_an_offset_of_an_earlier_topic_is_where_nobody_is(kind: ResetKind) -> None:
    """It is no place to count from. And what an operator chooses is stored, though the number may be the same."""
    standing, log = PartitionNodes(PARTITION, node(b"10", 0), None, earlier=True), LogRange(0, 30)
    if kind in ("current", "shift"):
        with pytest.raises(ValueError, match="was stored for an earlier topic of that name: give --to-earliest"):
            reset(standing, Reset(kind, 0), log)
        return
    change = reset(standing, Reset(kind, 10), log, 10)
    new = {"earliest": 0, "latest": 30}.get(kind, 10)
    shown = change.described()
    assert (shown.old, shown.new, shown.changes, shown.skipped, shown.repeated) == (None, new, True, new, 0)
    assert change.changed(GroupPaths("g"))


def test_without_a_broker_a_preview_counts_what_it_is_at_most() -> None:
    change = OffsetChange(PartitionNodes(PARTITION, node(b"999999", 0), None), b"3020").described()
    text = changes_table(ChangedOffsets(False, None, (ChangedGroup("g", None, (change,), ("old-1",)),)), "")
    assert "At most 996,979 offsets will be consumed again." in text
    assert "Left out, since they do not exist: old-1." in text
