"""What the exporter makes of groups that brokers coordinate, and of two groups with one name."""

from __future__ import annotations

from kzconsumer.brokers.protocol.group_state import GroupMember, GroupState
from kzconsumer.model import TopicPartition
from kzconsumer.status.judgement import WINDOW
from kzconsumer_tools.exporter.kafka_groups import KafkaGroup, merged
from kzconsumer_tools.exporter.pictures import Histories, ReadGroup, SeenPartition, group_of_nodes
from tests.tools.plain.test_exporter import INTERVAL, P, stored
from tests.tools.plain.test_group_description import group, node, ours

MEMBER = GroupMember("m-1", "client", "/10.0.0.1", ("orders",), (P[0],))


def kafka(offsets: dict[TopicPartition, int], *members: GroupMember, state: str = "Stable") -> ReadGroup:
    return KafkaGroup(GroupState(0, state, members), offsets).read(P[:3])


def test_subscribed_assigned_and_committed_partitions() -> None:
    gone = TopicPartition("gone", 0)
    read = kafka({P[1]: 7, gone: 3}, MEMBER)
    assert [(each.place, each.owner, each.client, each.unowned, each.stored) for each in read.partitions] == [
        (gone, None, "", False, 3),
        (P[0], "m-1", "client", False, None),
        (P[1], None, "", True, 7),
        (P[2], None, "", True, None),
    ]
    assert read.members == 1
    rebalancing = kafka({}, MEMBER, state="PreparingRebalance")
    assert not any(each.unowned for each in rebalancing.partitions)
    assert [each.place for each in kafka({P[1]: 7}, state="Empty").partitions] == [P[1]]


def judged(*offsets: int, end: int = 100) -> SeenPartition:
    """After readings with these offsets, one an interval."""
    histories = Histories(INTERVAL)
    for number, offset in enumerate(offsets):
        read = {"g": kafka({P[0]: offset}, MEMBER)}
        seen = histories.look(read, {P[0]: end}, {}, INTERVAL * number)
    return seen["g"].partitions[0]


def test_an_offset_that_changes_is_a_commit_of_the_reading_in_which_it_was_seen() -> None:
    advancing = judged(1, 2, 2, 4)
    assert [(commit.offset, commit.at) for commit in advancing.commits] == [(1, 0.0), (2, INTERVAL), (4, 3 * INTERVAL)]
    assert judged(*[5] * (WINDOW + 2)).judgement == "STOP"
    assert judged(5, 4, 4).judgement == "REWIND"
    assert judged(*[100] * (WINDOW + 2)).judgement == "OK"


def test_a_group_that_could_not_be_read_keeps_its_history() -> None:
    for unread, commits in ((["g"], 2), ([], 1)):
        histories = Histories(INTERVAL)
        histories.look({"g": kafka({P[0]: 1}, MEMBER)}, {}, {}, 0.0)
        assert histories.look({}, {}, {}, 1.0, unread) == {}
        seen = histories.look({"g": kafka({P[0]: 2}, MEMBER)}, {}, {}, 2.0)
        assert len(seen["g"].partitions[0].commits) == commits


def test_of_two_groups_with_one_name() -> None:
    """That in ZooKeeper, completed by the offsets that it keeps in the brokers; but not while only the other lives."""
    empty = group_of_nodes(group({}, {}, stored(p0=(5, 0.0))))
    alive = group_of_nodes(group({"m": ours(orders=1)}, {"orders/0": node("m-0", 0x11)}, stored(p0=(5, 0.0))))
    copies, other = kafka({P[0]: 4, P[1]: 9}, state="Empty"), kafka({P[0]: 8}, MEMBER)
    assert merged({"g": empty}, {"g": other, "h": copies}) == {"g": other, "h": copies}
    (completed,) = merged({"g": alive}, {"g": copies}).values()
    rows = {each.place: each for each in completed.partitions}
    assert [(rows[each].stored, rows[each].owner) for each in P[:3]] == [(5, "m-0"), (9, None), (None, None)]
    assert (rows[P[0]].committed, rows[P[1]].committed, completed.members) == (0.0, None, 1)
    (both,) = merged({"g": alive}, {"g": other}).values()
    assert both.partitions[0].owner == "m-0"
    (neither,) = merged({"g": empty}, {"g": copies}).values()
    assert [(each.place, each.stored) for each in neither.partitions] == [(P[0], 5), (P[1], 9)]
