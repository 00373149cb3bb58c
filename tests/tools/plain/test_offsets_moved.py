"""Which offsets `groups move` leaves where they are, and what it says about them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import ClaimRecord, encode_claim_record
from kzconsumer.zookeeper.operations import Node, Stat
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.groups.group_nodes import GroupNodes, KnownTopic, facts
from kzconsumer_tools.node_changes import SavedNode
from kzconsumer_tools.offsets.move_rules import Block, Side, block, in_use, known_blocks, moved, to_resolve
from kzconsumer_tools.offsets.offset_files import read_offsets, write_offsets
from tests.support.plans import plan_of

HERE = TopicPartition("t", 0)
PLAN = plan_of(3, 9, offset_version=1)


def node(data: bytes, czxid: int = 1, mzxid: int = 1) -> Node:
    return Node(data, Stat(czxid, mzxid, 0, 0, 0, 0, 0, 0))


def group(name: str = "g", **nodes: object) -> GroupNodes:
    empty = GroupNodes(name, {}, {}, {}, {}, ("t",), {"t": KnownTopic((0,), 1)})
    return msgspec.structs.replace(empty, **nodes)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_an_offset_is_moved_if_a_consumer_can_start_there(offset: int, start: int, size: int) -> None:
    log = LogRange(start, start + size)
    found = block(HERE, offset, log, {})
    assert (found is None) == (log.clamp(offset) == offset)
    assert found in (None, "offset_before_log" if offset < start else "offset_after_log")


def test_what_is_known_of_a_partition_comes_first() -> None:
    assert block(HERE, 3, None, {}) == "topic_missing"
    assert block(HERE, None, None, {}) is None
    assert block(HERE, 3, LogRange(0, 9), {HERE: "planned_range"}) == "planned_range"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (group(offsets={"/consumers/g/offsets/t/0": node(b"3", 5, 7)}), None),
        (group(offsets={"/consumers/g/offsets/t/0": node(b"x")}), "unreadable_offset"),
        (group(claims={"/consumers/g/claims/t/0": node(b"{}")}), "unknown_claim_record"),
        (
            group(
                claims={
                    "/consumers/g/claims/t/0": node(encode_claim_record(ClaimRecord(1, "range", "0x2a", 0, "f", PLAN)))
                }
            ),
            "planned_range",
        ),
        (
            group(
                offsets={"/consumers/g/offsets/t/0": node(b"3", 1, 7)},
                topics={"t": KnownTopic((0,), 8)},
            ),
            "recreated_topic",
        ),
        (
            group(
                offsets={"/consumers/g/offsets/t/0": node(b"3", 1, 9)},  # written since, by an original member
                topics={"t": KnownTopic((0,), 8)},
            ),
            None,
        ),
        (
            group(
                offsets={"/consumers/g/offsets/t/0": node(b"3", 1, 7)},
                topics={"t": KnownTopic((0,), None)},  # not the one that the group has consumed
                from_brokers=True,
            ),
            "recreated_topic",
        ),
        (group(offsets={"/consumers/g/offsets/t/00": node(b"x")}), None),
    ],
)
def test_what_the_nodes_of_a_group_show(nodes: GroupNodes, expected: Block | None) -> None:
    found = known_blocks(facts(nodes), offsets=True)
    assert found.get(HERE) == expected
    of_claims = ("unknown_claim_record", "planned_range")
    # With offsets in the brokers alone those in ZooKeeper do not count.
    assert known_blocks(facts(nodes), offsets=False).get(HERE) == (expected if expected in of_claims else None)


def test_members_on_either_side_are_named() -> None:
    member = {"g_a": node(b"{}")}
    assert list(in_use(group(), group(), ())) == []
    both = group(registrations=member)
    assert list(in_use(both, both, ())) == ["the group g has 1 member (g_a): stop it first"]
    other = group("k", registrations=member)
    assert list(in_use(group(), other, ("c-1", "c-2"))) == [
        "the group k has 1 member (g_a): stop it first",
        "the Kafka group k has 2 members (c-1, c-2): stop them first",
    ]


@pytest.mark.parametrize("to", ["kafka", "zookeeper"])
def test_every_reason_has_a_way_out(to: Side) -> None:
    kinds: list[Block] = ["offset_after_log", "offset_before_log", "topic_missing"]
    rows = [moved(HERE, to, 3, 4, None, kind, None) for kind in kinds]
    assert [row.new for row in rows] == [4 if to == "kafka" else 3] * 3
    missing, outside = sorted(to_resolve("g", to, rows))
    assert missing.startswith("1 offset is of a topic or partition that does not exist: ")
    assert outside.startswith("2 offsets are outside the log: ")
    assert ("kafka-consumer-groups.sh" in outside) == (to == "zookeeper")


def test_spark_gets_only_offsets() -> None:
    """There -1 would be the end of the log."""
    paths = [
        SavedNode("/consumers/g/offsets/t/0", b"3"),
        SavedNode("/consumers/g/offsets/t/1", b"-1"),
        SavedNode("/consumers/g/offsets/u/2", b"0"),
    ]
    assert write_offsets("spark", paths) == b'{"t":{"0":3},"u":{"2":0}}\n'
    with pytest.raises(ValueError, match="is not an offset"):
        write_offsets("spark", [SavedNode("/consumers/g/offsets/t/0", b"x")])
    read = read_offsets(write_offsets("spark", paths))
    assert (read.format, [(each.partition, each.data) for each in read.offsets]) == (
        "spark",
        [(TopicPartition("t", 0), b"3"), (TopicPartition("u", 2), b"0")],
    )
