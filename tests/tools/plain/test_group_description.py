"""How `kzconsumer groups` interprets nodes and shows them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
import pytest

from kzconsumer.lag.partition import Reason
from kzconsumer.registry.claim_record import ClaimRecord, encode_claim_record
from kzconsumer.registry.group_records import encode_registration
from kzconsumer.zookeeper.operations import Node, Stat
from kzconsumer_tools.groups.advice import Symptom, examined
from kzconsumer_tools.groups.diagnosis import examine, not_asked, verify
from kzconsumer_tools.groups.group_description import GroupDescription, IdleStream, describe
from kzconsumer_tools.groups.group_lag import GroupSummary, worst_first
from kzconsumer_tools.groups.group_nodes import GroupNodes, facts, topic_of_node
from kzconsumer_tools.tables.group_tables import describe_table, list_table, symptoms_table
from kzconsumer_tools.tables.text import WIDTH, runs
from tests.support.plans import plan_of

OURS, THEIRS = 0x11, 0x22  # sessions
ORIGINAL = b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1795260559322"}'
RECORD = encode_claim_record(ClaimRecord(1, "range", "0x1"))


def described(nodes: GroupNodes) -> GroupDescription:
    """By what the nodes alone show."""
    return describe(nodes, facts(nodes), examined(nodes.group, examine(nodes, {}, {})))


def node(data: bytes | str, session: int = 0) -> Node:
    stat = Stat(1, 1, 0, 0, session, 0, 0, 0)
    return Node(data.encode() if isinstance(data, str) else data, stat)


def ours(**topics: int) -> Node:
    return listed("static", topics)


def listed(pattern: str, subscription: dict[str, int]) -> Node:
    return node(encode_registration(subscription, 0, "1.0", pattern), OURS)


def topic(partitions: int) -> Node:
    return topic_of(range(partitions))


def topic_of(numbers: Iterable[int]) -> Node:
    return node(msgspec.json.encode({"version": 1, "partitions": {str(number): [1] for number in numbers}}))


def group(
    registrations: dict[str, Node],
    owners: dict[str, Node],
    offsets: dict[str, Node] | None = None,
    claims: dict[str, Node] | None = None,
    topics: dict[str, Node] | None = None,
) -> GroupNodes:
    """Leaves are given as `topic/partition`. Unless given otherwise, there is a topic orders, with four partitions, or,
    without members, with those of the four that have nodes."""
    if topics is None:
        named = {leaf for leaves in (owners, offsets, claims) for leaf in leaves or {}}
        topics = {"orders": topic_of(n for n in range(4) if registrations or f"orders/{n}" in named)}
    below = {
        kind: {f"/consumers/g/{kind}/{leaf}": each for leaf, each in (leaves or {}).items()}
        for kind, leaves in (("owners", owners), ("offsets", offsets), ("claims", claims))
    }
    return GroupNodes(
        group="g",
        registrations=registrations,
        owners=below["owners"],
        offsets=below["offsets"],
        claims=below["claims"],
        all_topics=tuple(topics),
        topics={name: topic_of_node(each) for name, each in topics.items()},
    )


MIXED = group(
    {"g_a": ours(orders=1), "g_b": node(ORIGINAL, THEIRS)},
    {
        "orders/0": node("g_a-0", OURS),
        "orders/1": node("g_a-0", OURS),
        "orders/2": node("g_b-0", THEIRS),
        "orders/3": node("g_b-1", THEIRS),
    },
    {"orders/0": node("7"), "orders/1": node("-1"), "orders/3": node("0")},
    {"orders/0": node(RECORD), "orders/1": node(RECORD)},
)


def test_a_group_of_both_kinds_of_members() -> None:
    found = described(MIXED)
    assert (found.group, found.health, found.unowned, found.findings) == ("g", "healthy", 0, ())
    assert [(each.consumer, each.ours, each.streams, each.owns) for each in found.members] == [
        ("g_a", True, 1, 2),
        ("g_b", False, 2, 2),
    ]
    assert [(each.partition, each.owner, each.owner_kind, each.stored) for each in found.partitions] == [
        (0, "g_a-0", "member", 7),
        (1, "g_a-0", "member", None),
        (2, "g_b-0", "member", None),
        (3, "g_b-1", "member", 0),
    ]
    assert all(each.exists and each.subscribed for each in found.partitions)


def test_streams_without_partition() -> None:
    """Each stream of a static subscription belongs to one topic; a filter's are shared by all matching topics."""
    found = described(
        group(
            {"g_a": ours(orders=2, pay=2, later=2), "g_b": listed("white_list", {"o.*": 3})},
            {"orders/0": node("g_a-0", OURS), "pay/0": node("g_a-1", OURS), "orders/1": node("g_b-1", OURS)},
            topics={"orders": topic(2), "pay": topic(1)},
        )
    )
    assert found.idle_streams == (
        IdleStream("g_a-1", "orders"),
        IdleStream("g_a-0", "pay"),
        IdleStream("g_b-0", None),
        IdleStream("g_b-2", None),
    )
    assert found.missing_topics == ("later",)
    assert {each.id for each in found.findings} == {"topic_missing"}


def test_partitions_without_owner() -> None:
    found = described(group({"g_a": ours(orders=1)}, {"orders/2": node("g_a-0", OURS)}))
    assert [each.unowned for each in found.partitions] == [True, True, False, True]
    assert (found.unowned, found.health) == (3, "unhealthy")


def test_a_group_without_members() -> None:
    """Its offsets are shown; those of deleted topics are findings."""
    found = described(group({}, {}, {"orders/1": node("5"), "gone/0": node("9")}))
    assert [(each.topic, each.partition, each.exists, each.subscribed, each.stored) for each in found.partitions] == [
        ("gone", 0, False, False, 9),
        ("orders", 1, True, False, 5),
    ]
    assert (found.health, found.unowned, found.missing_topics) == ("unhealthy", 0, ("gone",))
    assert [each.id for each in found.findings] == ["topic_gone"]
    assert found.findings[0].command == "kzconsumer groups clean g"
    left = described(group({}, {}, {"orders/1": node("5")}))
    assert describe_table(left).endswith("Healthy: no members, and nothing is left to read.")


@pytest.mark.parametrize(
    ("data", "session", "kind"),
    [
        ("g_a-0", OURS, "member"),
        ("g_a-0", THEIRS, "other_session"),
        ("g_a-0", 0, "persistent"),
        ("g_x-0", THEIRS, "unregistered"),
        ("no thread", THEIRS, "unregistered"),
        (b"\xff", THEIRS, "unregistered"),
    ],
)
def test_who_holds_an_owner_node(data: bytes | str, session: int, kind: str) -> None:
    found = described(group({"g_a": ours(orders=1)}, {"orders/0": node(data, session)}, topics={"orders": topic(1)}))
    assert found.partitions[0].owner_kind == kind
    assert [each.id for each in found.findings] == ([] if kind == "member" else [f"{kind}_owner"])
    assert found.health == ("healthy" if kind == "member" else "unhealthy")


@pytest.mark.parametrize("name", ["host:6f1c4bb2-2d5b-4b5e-9a0c-0c1d1fd6a7c1", "host-12", "g_z"])
def test_owner_nodes_of_clients_without_threads_name_the_member(name: str) -> None:
    """As Go's and Ruby's clients write them. Which partitions they take is theirs to know."""
    members = {name: node(ORIGINAL, THEIRS), "g_y": node(ORIGINAL, OURS)}
    found = described(group(members, {f"orders/{n}": node(name, THEIRS) for n in range(4)}))
    assert (found.health, found.findings) == ("healthy", ())
    assert [(each.consumer, each.owns) for each in found.members] == sorted([("g_y", 0), (name, 4)])
    assert name not in {each.thread.rpartition("-")[0] for each in found.idle_streams}
    assert verify(group(members, {f"orders/{n}": node(name, THEIRS) for n in range(4)})) == []


def test_nodes_of_another_client_leave_the_health_unknown() -> None:
    """A Storm spout keeps its offsets in nodes of its own: nothing is known of them, and 0 would be a lie."""
    nodes = msgspec.structs.replace(group({}, {}), foreign=("partition_0", "partition_1"))
    found = examined("g", examine(nodes, {}, {}), not_asked({}, {}, nodes, facts(nodes)))
    assert (found.health, found.findings) == ("not examined", ())
    assert "a Storm spout: partition_0, partition_1" in symptoms_table(found, "no problem").replace("\n    ", " ")
    assert symptoms_table(found, "no problem").endswith("not everything could be asked.")


def test_an_unreadable_member_still_counts_as_registered() -> None:
    """Its owner nodes belong to a live session; its subscription is unknown."""
    found = described(group({"g_x": node("orders", THEIRS)}, {"orders/0": node("g_x-0", THEIRS)}))
    assert [(each.id, each.path) for each in found.findings] == [("unreadable_registration", "/consumers/g/ids/g_x")]
    assert (found.members, found.partitions[0].owner_kind, found.health) == ((), "member", "unhealthy")


def test_nodes_without_usable_content() -> None:
    newer = '{"version":2,"assignor":"range","incarnation":"0x2a"}'
    plan = plan_of(3, 9)
    planned = encode_claim_record(ClaimRecord(1, "range", "0x1", plan=plan))
    found = described(
        group(
            {"g_a": listed("white_list", {"(": 1}), "g_b": node(ORIGINAL)},
            {
                "orders/1-0": node("g_a-0", OURS),  # broker and partition: the form of 0.7
                "orders/3": node("g_a-0", OURS),  # only the owner uses its plan
            },
            {"orders/0": node("many")},
            {"orders/0": node(newer), "orders/1": node(planned), "orders/2": node(RECORD), "orders/3": node(planned)},
            topics={"orders": topic(4), "bad": node("[]")},
        )
    )
    assert [(each.id, each.path) for each in found.findings if each.id != "unowned_partition"] == [
        ("persistent_registration", "/consumers/g/ids/g_b"),
        ("planned_range", "/consumers/g/claims/orders/1"),
        ("unknown_claim_record", "/consumers/g/claims/orders/0"),
        ("unknown_node", "/consumers/g/owners/orders/1-0"),
        ("unreadable_offset", "/consumers/g/offsets/orders/0"),
        ("unreadable_topic", "/brokers/topics/bad"),
        ("unusable_pattern", "/consumers/g/ids/g_a"),
    ]
    assert "format 2" in next(each.text for each in found.findings if each.id == "unknown_claim_record")
    assert [(each.stored, each.why) for each in found.partitions[:2]] == [
        (None, "offset unreadable"),
        (None, "never committed"),
    ]


def test_the_table_of_a_mixed_group() -> None:
    assert describe_table(described(MIXED)) == MIXED_TABLE


def test_the_table_of_a_group_in_trouble() -> None:
    far = 12_345_678_901
    consumer = "g_a-host-with-a-rather-long-name.example.com-1700000000000-0a1b2c3d-and-then-some"
    owners = {f"orders/{number}": node(f"{consumer}-0", OURS) for number in range(2, 5)}
    owners |= {
        "orders/5": node("somebody_gone-host-1795260559322-0a1b2c3d-0"),
        "t" * 249 + "/0": node("gone-1", THEIRS),
    }
    found = described(
        group(
            {consumer: ours(orders=3), "g_b": ours(orders=3), "g_x": node("{", THEIRS)},
            owners,
            {"orders/2": node(str(far)), "orders/3": node(str(far))},
            topics={"orders": topic(7)},
        )
    )
    shown = describe_table(found)
    assert shown == TROUBLED_TABLE


def test_many_nodes_of_one_kind_are_counted() -> None:
    owners = {f"orders/{number}": node(f"g_a-{number}") for number in range(100)}
    shown = describe_table(described(group({"g_a": ours(orders=1)}, owners))).splitlines()
    at = shown.index("Owner nodes that no session holds: `groups clean` removes them (100):")
    assert shown[at + 11 :] == [
        "  … and 95 more, all of them with -o json",
        "Not healthy: 100 findings.",
    ]


def test_a_long_subscription_continues_in_the_rows_below() -> None:
    topics = {f"a-topic-with-a-name-{number}": number + 1 for number in range(20)}
    lines = describe_table(described(group({"g_a": ours(**topics), "g_b": ours(**topics)}, {}))).splitlines()
    shown = " ".join(line[8:].replace("static", "").strip() for line in lines[7 : lines.index("", 7)])
    assert sorted(shown.split(", ")) == sorted(f"{topic} {streams}" for topic, streams in topics.items())
    assert max(map(len, lines)) <= WIDTH


def test_the_list() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    busy = GroupSummary("busy", 1, 1, 1, ("orders", "pay"), 12, at, 7, 7, {}, 2.5, 2.5)
    silent: dict[Reason, int] = {"no leader": 2}
    half = GroupSummary("half", last_commit=at, lag_at_least=7, unknown=silent, unknown_seconds=silent)
    late = GroupSummary("late", lag=900, lag_at_least=900, seconds=60.0, seconds_at_least=60.0, lost=3, gone=2)
    closed = GroupSummary("closed", not_read="not permitted")
    shown = [line.split("  ") for line in list_table(worst_first([busy, half, late, closed])).splitlines()]
    assert [[cell.strip() for cell in line if cell] for line in shown] == [
        ["MEMBERS", "TOPICS", "OWNED", "LAG", "BEHIND", "LAST COMMIT", "GROUP"],
        ["-", "-", "-", "-", "-", "-", "closed", "not permitted"],
        ["none", "0", "0", "900", "1 min 0 s", "-", "late", "3 lost, 2 of what is gone"],
        ["1 ours, 1 original, 1 unreadable", "2", "12", "7", "2.5 s", "2026-01-31T12:00:00Z", "busy"],
        ["none", "0", "0", ">=7", "-", "2026-01-31T12:00:00Z", "half", "2 partitions unknown: no leader"],
    ]
    assert list_table([]) == "There are no groups."
    assert list_table([], chosen=True) == "No group matches."


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 7], "0, 2-3, 7")])
def test_runs(numbers: list[int], text: str) -> None:
    assert runs(numbers) == text


MIXED_TABLE = """\
group g: 2 members

MEMBER  KIND      STREAMS  OWNS  CONSUMER ID
m1      ours            1     2  g_a
m2      original        2     2  g_b

MEMBERS  PATTERN  SUBSCRIBES TO (STREAMS)
m1       static   orders 1
m2       static   orders 2

OWNER    PARTITIONS  STORED  TOPIC
m1-0              0       7  orders
m1-0              1       -  orders  never committed
m2-0              2       -  orders  never committed
m2-1              3       0  orders

Healthy: every partition has an owner that is a member."""

TROUBLED_TABLE = f"""\
group g: 2 members

MEMBER  KIND  STREAMS  OWNS  CONSUMER ID
m1      ours        3     3  g_a-host-with-a-rather-long-name.example.com-1700000000000-0a1b2c3d-and-then-some
m2      ours        3     0  g_b

MEMBERS  PATTERN  SUBSCRIBES TO (STREAMS)
m1-m2    static   orders 3

OWNER                                                      PARTITIONS       STORED  TOPIC
-                                                                 0-1            -  {"orders":<249}  never committed
m1-0                                                              2-3  12345678901  orders
m1-0                                                                4            -  {"orders":<249}  never committed
somebody_gone-host-1795260559322-0a1b2c3d-0  persistent             5            -  {"orders":<249}  never committed
-                                                                   6            -  {"orders":<249}  never committed
gone-1                                       unregistered           0            -  {"t" * 249}  never committed

Partitions without owner (3): orders 0-1, 6
Streams without partition (5): m1-1 of orders; m1-2 of orders; m2-0 of orders;
m2-1 of orders; m2-2 of orders
Topics that do not exist (1):
{"t" * 249}
Owner nodes that no session holds: `groups clean` removes them (1):
  /consumers/g/owners/orders/5
    a persistent node: only an operator may delete it (it names 'somebody_gone-
    host-1795260559322-0a1b2c3d-0')
Registrations that cannot be read: they block every rebalance; stop that member
  (1):
  /consumers/g/ids/g_x
    not JSON: Input data was truncated
Owners that are not registered: they disappear when their session expires (1):
  /consumers/g/owners/{"t" * 249}/0
    a member that is not registered: its session has to expire (it names
    'gone-1')
Not healthy: 6 findings."""


def test_findings_with_the_same_sentence_share_it() -> None:
    """Also a topic whose name is a number has a line of its own."""
    stalled = [Symptom("stalled", f"/consumers/g/offsets/orders/{n}", "records wait") for n in (0, 1, 2, 7, 10)]
    other = [Symptom("stalled", "/consumers/g/offsets/orders/3", "records wait, too")]
    missing = [Symptom("topic_missing", f"/brokers/topics/{name}", "none") for name in ("007", "2023", "2024")]
    lines = symptoms_table(examined("g", [*missing, *stalled[:2], *other, *stalled[2:]]), "").splitlines()
    assert lines[1:-1] == [
        "  /brokers/topics/007",
        "  /brokers/topics/2023",
        "  /brokers/topics/2024",
        "    none",
        "Partitions that stand still: only the owner knows why (its status page, `top`)",
        "  (6):",
        "  /consumers/g/offsets/orders/0-2, 7, 10",
        "    records wait",
        "  /consumers/g/offsets/orders/3",
        "    records wait, too",
    ]
    many = [Symptom("stalled", f"/consumers/g/offsets/orders/{n}", f"for {n // 2} s") for n in range(48)]
    assert "  … and 8 more, all of them with -o json" in symptoms_table(examined("g", many), "")
