"""Lag in offsets and seconds, of partitions and of a group."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from kzconsumer.lag.partition import Why
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.start_rules import WithBrokers, resume
from kzconsumer.registry.claim_record import ClaimRecord, CommitMark, encode_claim_record
from kzconsumer.zookeeper.operations import Node
from kzconsumer_tools.exporter.seen_groups import group_of_nodes
from kzconsumer_tools.groups.advice import examined
from kzconsumer_tools.groups.diagnosis import examine, not_asked, of_progress
from kzconsumer_tools.groups.group_lag import (
    GroupLag,
    LogRange,
    Logs,
    group_lag,
    next_offsets,
    partition_lags,
    partitions_of,
    standing_of,
)
from kzconsumer_tools.groups.group_nodes import GroupFacts, KnownTopic, facts
from kzconsumer_tools.offsets.stored_offsets import counting, group_offsets
from kzconsumer_tools.tables.group_tables import lag_table
from kzconsumer_tools.tables.offset_tables import show_table
from tests.tools.plain.test_group_description import OURS, group, node, ours, topic

AFTER = "offset after the log's end"
EARLIER = "offset of an earlier topic"
NOW = 1_700_000_000.0
ORDERS = [TopicPartition("orders", number) for number in range(8)]


def lag_of(stored: dict[int, str], logs: dict[int, LogRange | Why], written: Mapping[int, float | Why]) -> GroupLag:
    """`written`: seconds between now and the next record's timestamp."""
    offsets = {f"orders/{number}": node(text) for number, text in stored.items()}
    known = facts(group({}, {}, offsets))
    times = {ORDERS[n]: age if isinstance(age, Why) else round((NOW - age) * 1000) for n, age in written.items()}
    return whole(known, {ORDERS[n]: log for n, log in logs.items()}, times)


def whole(
    known: GroupFacts,
    logs: Logs,
    written: Mapping[TopicPartition, int | Why] = MappingProxyType({}),
    leaders: Mapping[TopicPartition, Broker] = MappingProxyType({}),
) -> GroupLag:
    return group_lag("g", known, partition_lags(known, partitions_of(known), logs, written, NOW), logs, NOW, leaders)


def test_the_lag_in_seconds_of_a_group_is_that_of_its_latest_partition() -> None:
    found = lag_of({0: "7", 1: "5", 2: "10"}, dict.fromkeys(range(3), LogRange(5, 10)), {0: 2.5, 1: 40})
    assert [(each.lag, each.seconds) for each in found.partitions] == [(3, 2.5), (5, 40.0), (0, 0.0)]
    assert (found.lag, found.seconds, found.unknown, found.unknown_seconds) == (8, 40.0, {}, {})
    assert lag_table(found).startswith("group g: lag 8, behind 40 s; 3 partitions\n")


@pytest.mark.parametrize(
    ("stored", "log", "written", "row", "sums"),
    [
        ("7", LogRange(5, 10), -3, (3, None, 0.0, None, 0), (3, 0.0)),
        ("7", LogRange(5, 10), -60, (3, None, None, "timestamp in the future", 0), (3, None)),
        ("7", LogRange(5, 10), Why("no timestamps"), (3, None, None, "no timestamps", 0), (3, None)),
        ("7", LogRange(5, 10), None, (3, None, None, "record not read", 0), (3, None)),
        ("2", LogRange(5, 10), 9, (5, None, 9.0, None, 3), (5, 9.0)),
        ("2", LogRange(5, 5), None, (0, None, 0.0, None, 3), (0, 0.0)),
        ("11", LogRange(5, 10), None, (None, AFTER, None, AFTER, 0), (None, None)),
        ("7", Why("no leader"), None, (None, "no leader", None, "no leader", None), (None, None)),
        ("7", Why("brokers unreachable"), None, (None,) + ("brokers unreachable", None) * 2, (None, None)),
        ("x", LogRange(5, 10), None, (None, "offset unreadable", None, "offset unreadable", None), (None, None)),
        ("-1", LogRange(5, 10), None, (None, "never committed", None, "never committed", None), (None, None)),
        ("-1", LogRange(5, 5), None, (0, None, 0.0, None, 0), (0, 0.0)),
    ],
)  # fmt: skip
def test_unknown_is_never_zero(stored: str, log: LogRange | Why, written: Any, row: Any, sums: Any) -> None:
    found = lag_of({0: stored}, {0: log}, {0: written} if written is not None else {})
    (only,) = found.partitions
    assert (only.lag, only.why, only.seconds, only.why_seconds, only.lost) == row
    assert (found.lag, found.seconds) == sums
    text = lag_table(found)
    assert ("behind 0 s" in text) == (sums[1] == 0.0)
    assert ("lag 0" in text) == (sums[0] == 0)
    assert all(why in text for why in row[1::2] if why is not None)


def test_a_group_without_partitions_has_no_lag_of_0() -> None:
    """It may have just started, or its members ended before their first commit."""
    found = lag_of({}, {}, {})
    assert (found.lag, found.seconds, found.lag_at_least, found.seconds_at_least) == (None, None, 0, None)
    assert lag_table(found).splitlines()[0] == "group g: lag unknown; 0 partitions"
    assert "No offset is stored, and no member subscribes to a partition" in lag_table(found)


def test_partitions_that_were_never_read_are_unknown_in_a_group_that_has_stopped() -> None:
    """No member subscribes to them any more; that they have no offset beside others is no lag of 0."""
    known = facts(group({}, {}, {"orders/1": node("10")}, topics={"orders": topic(4), "others": topic(2)}))
    logs: dict[TopicPartition, LogRange | Why] = {
        ORDERS[0]: LogRange(0, 70),
        ORDERS[1]: LogRange(0, 10),
        ORDERS[2]: LogRange(0, 0),
        ORDERS[3]: Why("no leader"),
    }
    found = whole(known, logs)
    assert [(each.partition, each.stored, each.lag, each.why) for each in found.partitions] == [
        (0, None, None, "never committed"),
        (1, 10, 0, None),
        (2, None, 0, None),
        (3, None, None, "never committed"),
    ]
    assert (found.lag, found.lag_at_least, found.unknown) == (None, 0, {"never committed": 2})
    head = lag_table(found).splitlines()[0]
    assert head == "group g: lag unknown (2 unknown: never committed), behind unknown; 4 partitions"


def test_what_is_known_is_shown_beside_what_is_not() -> None:
    found = lag_of({0: "7", 1: "8", 2: "x"}, {0: LogRange(5, 10), 1: Why("no leader")}, {0: 2})
    assert (found.lag, found.lag_at_least, found.seconds, found.seconds_at_least) == (None, 3, None, 2.0)
    assert found.unknown == found.unknown_seconds == {"no leader": 1, "offset unreadable": 1}
    head = lag_table(found).splitlines()[0]
    assert head == (
        "group g: lag at least 3 (2 unknown: 1 no leader, 1 offset unreadable), behind at least 2 s; 3 partitions"
    )


def at(node: Node, ago: float) -> Node:
    """Created and changed so long before NOW."""
    ms = round((NOW - ago) * 1000)
    return replace(node, stat=replace(node.stat, ctime=ms, mtime=ms))


@pytest.mark.parametrize(
    ("owned", "committed", "age", "health"),
    [
        (301, 301, 301, "unhealthy"),
        (299, 301, 301, "healthy"),  # it has just been claimed
        (301, 299, 301, "healthy"),  # it advances, however far behind
        (301, 301, 299, "healthy"),  # nothing was left to read until just now
        (301, 301, None, "not examined"),  # brokers before 0.10
        (301, None, 301, "not examined"),  # stored with the brokers
        (299, None, None, "healthy"),
        (301, None, 299, "healthy"),
    ],
)
def test_an_owner_that_stands_still_is_seen_from_outside(
    owned: float, committed: float | None, age: float | None, health: str
) -> None:
    stored = {"orders/0": at(node("3"), committed)} if committed is not None else {}
    nodes = group({"m": ours(orders=1)}, {"orders/0": at(node("m-0", OURS), owned)}, stored)
    known = replace(facts(nodes), offsets={ORDERS[0]: 3, ORDERS[1]: 1})
    logs: dict[TopicPartition, LogRange | Why] = {each: LogRange(0, 10) for each in ORDERS[:2]}
    written: dict[TopicPartition, int | Why] = {ORDERS[0]: round((NOW - age) * 1000) if age else Why("no timestamps")}
    standing = standing_of(nodes, known, partition_lags(known, ORDERS[:2], logs, written, NOW), NOW)
    assert list(standing) == ORDERS[:1], "nobody owns the other one"
    found = examined("g", of_progress(nodes, known, logs, standing), not_asked(logs, standing, nodes, known))
    assert found.health == health
    assert [each.text for each in found.findings] == (
        ["records wait, and m-0 has stored no offset for 5 min 1 s"] if health == "unhealthy" else []
    )
    doctor = examined("g", examine(nodes, logs, {}, known, standing), not_asked(logs, standing, nodes, known))
    assert [each for each in doctor.findings if each.id == "stalled"] == list(found.findings)
    assert doctor.not_asked == found.not_asked


def test_an_offset_of_the_brokers_has_no_time() -> None:
    """ZooKeeper's node of it is an earlier one, which says nothing of when the brokers' was stored."""
    nodes = group({"m": ours(orders=1)}, {"orders/0": at(node("m-0", OURS), 999)}, {"orders/0": at(node("3"), 999)})
    written: dict[TopicPartition, int | Why] = {ORDERS[0]: round((NOW - 999) * 1000)}
    for stored, standing in ((3, 999.0), (5, None)):
        known = replace(facts(nodes), offsets={ORDERS[0]: stored})
        lags = partition_lags(known, ORDERS[:1], {ORDERS[0]: LogRange(0, 10)}, written, NOW)
        assert standing_of(nodes, known, lags, NOW) == {ORDERS[0]: standing}


def test_an_owner_that_has_read_everything_does_not_stand_still() -> None:
    nodes = group({"m": ours(orders=1)}, {"orders/0": at(node("m-0", OURS), 999)}, {"orders/0": at(node("10"), 999)})
    known = facts(nodes)
    for end, behind in ((10, False), (11, True)):
        lags = partition_lags(known, ORDERS[:1], {ORDERS[0]: LogRange(0, end)}, {}, NOW)
        assert bool(standing_of(nodes, known, lags, NOW)) == behind


def test_a_lag_that_an_offset_keeps_from_being_known_is_not_healthy() -> None:
    """Of the partitions that were chosen alone."""
    nodes = group({}, {}, {"orders/0": node("11"), "orders/1": node("x"), "orders/2": node("x")})
    logs: dict[TopicPartition, LogRange | Why] = dict.fromkeys(ORDERS[:2], LogRange(0, 10))
    found = of_progress(nodes, facts(nodes), logs, {})
    assert sorted((each.kind, each.path) for each in found) == [
        ("offset_after_log", "/consumers/g/offsets/orders/0"),
        ("unreadable_offset", "/consumers/g/offsets/orders/1"),
    ]
    assert set(found) <= set(examine(nodes, logs, {}))


def created(node: Node, transaction: int) -> Node:
    return replace(node, stat=replace(node.stat, czxid=transaction, mzxid=transaction))


@pytest.mark.parametrize(
    ("stored", "claimed", "counts"),
    [
        (7, None, False),
        (9, None, True),  # stored since, by an original member, or by `offsets reset`
        (7, "0x8", True),  # claimed since, with the offset
        (7, "0x3", False),
        (9, "0x3", True),
    ],
)
def test_the_offset_of_an_earlier_topic_is_no_lag(stored: int, claimed: str | None, counts: bool) -> None:
    """The topic was deleted and created again in transaction 8. The rules are those of a claim."""
    claims = {"orders/0": node(encode_claim_record(ClaimRecord(1, "range", claimed)))} if claimed else {}
    nodes = group({}, {}, {"orders/0": created(node("10"), stored)}, claims, {"orders": created(topic(1), 8)})
    known, logs = facts(nodes), {ORDERS[0]: LogRange(0, 10)}
    found = whole(known, logs)
    assert (found.lag, found.unknown) == ((0, {}) if counts else (None, {EARLIER: 1}))
    assert (EARLIER in lag_table(found)) != counts
    assert next_offsets(known, {ORDERS[0]: LogRange(0, 99)}) == ({ORDERS[0]: 10} if counts else {})
    symptoms = {} if counts else {("recreated_topic", "/consumers/g/offsets/orders/0")}
    assert {(each.kind, each.path) for each in of_progress(nodes, known, logs, {})} == set(symptoms)
    assert {(each.kind, each.path) for each in examine(nodes, logs, {})} == set(symptoms)
    (shown,) = group_offsets(nodes).partitions
    assert (shown.stored, shown.why, shown.zookeeper) == ((10, None, 10) if counts else (None, EARLIER, 10))
    with_brokers = {ORDERS[0]: WithBrokers(6, 0)}
    after = group_offsets(nodes, "both", with_brokers).partitions[0].stored
    # A claim begins another epoch, in which the brokers' copy does not count. Without a claim record nothing says that.
    assert after == (10 if counts else 6 if claimed is None else None)


@pytest.mark.parametrize("stored", [None, "x", "100", "6000"])
@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_member_begins_at_what_its_sink_has_committed(stored: str | None, incarnation: int) -> None:
    """As a claim does; what was committed of another topic of that name does not count."""
    mark = CommitMark(until=5000, incarnation=hex(incarnation), epoch=0, fingerprint="f")
    record = ClaimRecord(1, "range", hex(incarnation), fingerprint="f", mark=mark)
    offsets = {} if stored is None else {"orders/0": node(stored)}
    nodes = group({}, {}, offsets, {"orders/0": node(encode_claim_record(record))}, {"orders": topic(1)})
    known = facts(nodes)
    readable = int(stored) if stored is not None and stored.isdecimal() else None
    begins = resume(readable, 5000 if incarnation == 1 else None)
    assert known.offsets.get(ORDERS[0]) == begins
    if begins is not None:
        assert [(each.stored, each.zookeeper) for each in group_offsets(nodes).partitions] == [(begins, readable)]
        assert whole(known, {ORDERS[0]: LogRange(0, 9000)}).lag == 9000 - begins
        (read,) = group_of_nodes(nodes).partitions
        assert (read.stored, read.committed) == (begins, 0.0 if begins == readable else None)


def test_offsets_that_cannot_be_read_look_different_from_none() -> None:
    """Each with its reason, in the words of the lag. Which of two counts is not known if one of them is not."""
    denied = Why("not permitted", detail="offsets of group g: TOPIC_AUTHORIZATION_FAILED (29)")
    nodes = group({}, {}, {f"orders/{n}": node(text) for n, text in {0: "x", 1: "7", 2: "5", 4: "-1"}.items()})
    nodes = replace(nodes, topics={"orders": KnownTopic(tuple(range(5)), 0)})
    brokers: dict[TopicPartition, WithBrokers | Why] = {ORDERS[1]: WithBrokers(9, None)}
    brokers |= dict.fromkeys(ORDERS[2:4], denied)
    found = group_offsets(nodes, "both", brokers)
    assert [(each.stored, each.why, each.why_zookeeper, each.why_brokers) for each in found.partitions] == [
        (None, "offset unreadable", "offset unreadable", "never committed"),
        (9, None, None, None),
        (None, "not permitted", None, "not permitted"),
        (None, "not permitted", "never committed", "not permitted"),
        (None, "never committed", "never committed", "never committed"),
    ]
    assert show_table(found).splitlines()[0::2] == [
        "group g: 1 stored offset (4 without: 1 offset unreadable, 2 not permitted, 1 never committed)",
        "PARTITION  STORED  ZOOKEEPER  BROKERS  EPOCH  PLAN  TOPIC",
        "        1       9          7        9      -  -     orders",
        "        3       -          -        -      -  -     orders  not permitted",
    ]
    assert [(each.stored, each.why, each.brokers, each.why_brokers) for each in group_offsets(nodes).partitions] == [
        (None, "offset unreadable", None, None),
        (7, None, None, None),
        (5, None, None, None),
        (None, "never committed", None, None),
    ]
    known = counting(nodes, "both", brokers)
    assert whole(known, {}).unknown["not permitted"] == 2
    assert not_asked({}, {}, nodes, known) == [f"where a member starts in 2 partitions: {denied.detail}"]


def test_of_a_topic_that_was_read_for_no_group_every_offset_counts() -> None:
    """Nothing says then which topics of that name a group has consumed."""
    nodes = group({}, {}, {"orders/0": node("10")})
    for identified in (False, True):
        topics = {"orders": KnownTopic((0,), None, identified=identified)}
        assert bool(facts(replace(nodes, topics=topics)).earlier_offsets) == identified


def test_the_offset_of_a_deleted_topic_is_no_lag_and_has_a_cure() -> None:
    known = facts(group({}, {}, {"orders/0": node("7"), "old/0": node("3"), "old/1": node("4")}))
    found = whole(known, {ORDERS[0]: LogRange(5, 7)})
    assert (found.lag, found.seconds, found.gone, found.unknown) == (0, 0.0, 2, {})
    assert "2 offsets of what does not exist (old): `kzconsumer groups clean g`" in lag_table(found)
    assert [each.gone for each in found.partitions] == [True, True, False]


def test_ages_are_asked_of_the_first_record_that_is_left() -> None:
    known = facts(group({}, {}, {f"orders/{n}": node(str(stored)) for n, stored in enumerate((4, 5, 9, 10))}))
    logs = dict.fromkeys(ORDERS[:3], LogRange(5, 9))
    assert next_offsets(known, logs) == {ORDERS[0]: 5, ORDERS[1]: 5}


def test_the_leader_and_the_owners_host() -> None:
    """The host is part of the consumer ids that both consumers make, and unknown with one of the application."""
    ids = ("g_a-b-1795282558531-b173380f", "g_fixed", "g_h_1-1795282558531-0000000f")
    owners = {f"orders/{number}": node(f"{consumer}-0") for number, consumer in enumerate(ids)}
    known = facts(group({}, owners, {f"orders/{number}": node("7") for number in range(4)}))
    leaders = {TopicPartition("orders", 0): Broker(3, "::1", 9092)}
    found = whole(known, {}, leaders=leaders).partitions
    assert [each.host for each in found] == ["a-b", None, "h_1", None]
    assert [(each.leader, each.leader_address) for each in found] == [(3, "[::1]:9092"), *[(None, None)] * 3]
