"""What `kzconsumer groups plan` computes and how it is shown."""

from __future__ import annotations

import msgspec
import pytest

from kzconsumer.assignors import AssignmentContext, assign_range
from kzconsumer.errors import PluginError
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.group_records import STATIC, Registration
from kzconsumer.registry.nodes import Topic
from kzconsumer_tools.groups.group_description import AssignmentPreview, preview
from kzconsumer_tools.tables.group_tables import table

TOPICS = {"orders": Topic(tuple(range(6)), 1)}


def member(streams: int = 1, topic: str = "orders", *, ours: bool = True) -> Registration:
    return Registration(STATIC, {topic: streams}, ours)


def owned(*owners: str | None) -> dict[TopicPartition, str]:
    return {TopicPartition("orders", number): owner for number, owner in enumerate(owners) if owner}


def plan(
    present: dict[str, Registration],
    joining: dict[str, Registration],
    owners: dict[TopicPartition, str],
    topics: dict[str, Topic] = TOPICS,
) -> AssignmentPreview:
    now, then = (GroupSnapshot(members, (), topics) for members in (present, {**present, **joining}))
    return preview("group", "range", assign_range, now, then, owners)


def test_one_more_member() -> None:
    today = owned("g_a-0", "g_a-0", "g_a-1", "g_a-1", "g_b-0", "g_b-0")
    found = plan({"g_a": member(2), "g_b": member(ours=False)}, {"g_c": member()}, today)
    assert found.as_assigned
    assert [(each.owner, each.now, each.then, each.change) for each in found.partitions] == [
        ("g_a-0", "g_a-0", "g_a-0", "stays"),
        ("g_a-0", "g_a-0", "g_a-0", "stays"),
        ("g_a-1", "g_a-1", "g_a-1", "stays"),
        ("g_a-1", "g_a-1", "g_a-1", "stays"),
        ("g_b-0", "g_b-0", "g_b-0", "stays"),
        ("g_b-0", "g_b-0", "g_c-0", "moves"),
    ]
    assert found.changes == {"stays": 5, "stream": 0, "moves": 1, "claimed": 0}
    assert [msgspec.structs.astuple(each) for each in found.members] == [
        ("g_a", False, True, 2, 4, 4, 4),
        ("g_b", False, False, 1, 2, 2, 1),
        ("g_c", True, True, 1, 0, 0, 1),
    ]


def test_before_anyone_joined() -> None:
    found = plan({}, {"g_a": member(), "g_b": member()}, {})
    assert found.as_assigned
    assert [(each.owner, each.now, each.then) for each in found.partitions] == [
        *[(None, None, "g_a-0")] * 3,
        *[(None, None, "g_b-0")] * 3,
    ]
    assert found.changes["claimed"] == 6


def test_owners_that_differ_from_the_assignment() -> None:
    found = plan({"g_a": member(2)}, {}, owned("g_a-1", "g_a-0", "g_a-0", "g_gone-0", None, "g_a-1"))
    assert not found.as_assigned
    assert [each.change for each in found.partitions] == ["stream", "stays", "stays", "moves", "claimed", "stays"]
    assert "The present owner is not the one that range computes: 3 partitions." in table(found)


def test_streams_without_partition_and_topics_that_do_not_exist_are_named() -> None:
    found = plan({"g_a": member(5)}, {"g_b": member(3), "g_c": member(1, "later")}, {})
    assert found.idle_streams == ("g_b-1", "g_b-2", "g_c-0")
    assert found.missing_topics == ("later",)
    assert "Streams that would get no partition (3): +1-1, +1-2, +2-0" in table(found).splitlines()
    assert "Topics that do not exist: later" in table(found).splitlines()


def test_a_member_that_rejoins_with_another_number_of_streams() -> None:
    found = plan({"g_a": member()}, {"g_a": member(2)}, owned(*["g_a-0"] * 6))
    assert [(each.consumer, each.joins, each.streams) for each in found.members] == [("g_a", True, 2)]
    assert found.changes == {"stays": 3, "stream": 3, "moves": 0, "claimed": 0}


def test_an_assignor_that_breaks_its_contract() -> None:
    def nobody(context: AssignmentContext) -> dict[TopicPartition, ConsumerThreadId]:
        return {}

    group = GroupSnapshot({"g_a": member()}, (), TOPICS)
    with pytest.raises(PluginError, match="assignor lazy left out"):
        preview("group", "lazy", nobody, group, group, {})


def test_the_table() -> None:
    long = "orders_a-host-with-a-rather-long-name.in.some.data.centre-1700000000000-0a1b2c3d"
    topics = {"orders": Topic(tuple(range(6)), 1), "t" * 249: Topic((0,), 2)}
    members = {long: Registration(STATIC, {"orders": 1, "t" * 249: 1}, ours=True)}
    today = owned(*[f"{long}-0"] * 3, "somebody-who-has-left-0", None, None)
    shown = table(plan(members, {"zz": member(2)}, today, topics))
    assert f"{shown}\n" == TABLE.replace("LONG", long).replace("TTTT", "t" * 249)


TABLE = """\
group group, assignor range: 1 member, 1 joining

MEMBER  STREAMS  OWNS  NOW  THEN  CONSUMER ID
m1            1     3    7     3  LONG
+1            2     0    0     4  zz

OWNER                    THEN           PARTITIONS  TOPIC
m1-0                     m1-0                  0-1  orders
m1-0                     +1-0  MOVES             2  orders
somebody-who-has-left-0  +1-0  MOVES             3  orders
-                        +1-1  claimed         4-5  orders
-                        m1-0  claimed           0  TTTT

Of 7 partitions, 2 would move to another member, 0 to another stream.
2 would stay where they are, and 3 without an owner would get one.
The present owner is not the one that range computes: 4 partitions.
A rebalance is in progress, or a member runs another assignor.
"""
