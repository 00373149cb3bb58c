"""Problems of a group's logs and assignment, leftover nodes, and its members."""

from __future__ import annotations

import shlex
import time

import msgspec
import pytest

from kzconsumer.assignors import assign_range as by_range
from kzconsumer.assignors import assign_roundrobin as by_roundrobin
from kzconsumer.cli.main import whole_parser
from kzconsumer.lag.partition import Why
from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import ClaimRecord, Plan, encode_claim_record
from kzconsumer.registry.group_records import GroupRun, TopicEnds, encode_group_run
from kzconsumer.zookeeper.operations import Node
from kzconsumer_tools.groups.advice import ADVICE, Symptom, examined
from kzconsumer_tools.groups.diagnosis import (
    deletion,
    examine,
    lasting,
    leftovers,
    not_asked,
    removal,
    restoration,
    verified,
    verify,
)
from kzconsumer_tools.groups.group_lag import LogRange, partitions_of
from kzconsumer_tools.groups.group_nodes import GroupNodes, KnownTopic, facts, members_present
from kzconsumer_tools.node_changes import SavedNode
from kzconsumer_tools.tables.group_tables import verified_table
from tests.core.plain.test_troubleshooting import PAGE, anchors
from tests.tools.plain.test_group_description import MIXED, ORIGINAL, OURS, THEIRS, group, node, ours, topic

ASSIGNORS = {"range": by_range, "roundrobin": by_roundrobin}


def record(assignor: str) -> Node:
    return node(encode_claim_record(ClaimRecord(1, assignor, "0x1")))


def kinds(symptoms: list[Symptom]) -> list[tuple[str, str]]:
    return [(each.kind, each.path.removeprefix("/consumers/g/")) for each in symptoms]


def two_members(
    owners: dict[str, str], *assignors: str, member: Node | None = None, whole: tuple[str, ...] = ()
) -> GroupNodes:
    """Two topics of two partitions; `a` and `b` have one stream of each. The first partitions have claim records. The
    owners of `whole` are clients that have no threads."""
    member = member or ours(orders=1, pay=1)
    claims = {f"orders/{number}": record(name) for number, name in enumerate(assignors)}
    return group(
        {"g_a": member, "g_b": node(member.data, THEIRS)},
        {
            leaf: node(owner if leaf in whole else f"{owner}-0", OURS if owner == "g_a" else THEIRS)
            for leaf, owner in owners.items()
        },
        claims=claims,
        topics={"orders": topic(2), "pay": topic(2)},
    )


RANGE = {"orders/0": "g_a", "orders/1": "g_b", "pay/0": "g_a", "pay/1": "g_b"}
SWAPPED = {"orders/0": "g_b", "orders/1": "g_a", "pay/0": "g_a", "pay/1": "g_b"}


@pytest.mark.parametrize(
    ("nodes", "wrong"),
    [
        (two_members(RANGE, "range", "range"), []),
        (two_members(RANGE, member=node(ORIGINAL.replace(b'"orders":2', b'"orders":1,"pay":1'), OURS)), []),
        (
            two_members(SWAPPED, "range", "range"),
            [("owner_not_as_computed", "owners/orders/0"), ("owner_not_as_computed", "owners/orders/1")],
        ),
        (
            two_members(RANGE, "range", "roundrobin"),
            [("different_assignors", "claims/orders/0"), ("different_assignors", "claims/orders/1")],
        ),
        (two_members(SWAPPED, "of-a-plugin", "of-a-plugin"), []),
        (two_members(SWAPPED, "range", "range", whole=("pay/0",)), []),
    ],
    ids=[
        *("as computed", "originals as one computes", "not as computed", "two assignors"),
        *("an assignor we have not", "one owner without threads"),
    ],
)
def test_members_that_compute_differently(nodes: GroupNodes, wrong: list[tuple[str, str]]) -> None:
    assert kinds(examine(nodes, {}, ASSIGNORS)) == wrong
    assert verify(nodes) == []


@pytest.mark.parametrize("owned", [False, True])
def test_a_large_group_is_examined_at_once(owned: bool) -> None:
    """Twenty members of 3,000 topics: a tenth of a second, 10 s if each partition looked at all subscriptions."""
    names = [f"orders-{number}" for number in range(3000)]
    nodes = group(
        {f"g_{number}": ours(**dict.fromkeys(names, 1)) for number in range(20)},
        {f"{name}/0": node("g_x-0", THEIRS) for name in names if owned},
        topics={name: topic(1) for name in names},
    )
    begun = time.process_time()
    symptoms = verify(nodes)
    assert time.process_time() - begun < 2
    assert {each.kind for each in symptoms} == {"unregistered_owner" if owned else "unowned_partition"}
    assert len(symptoms) == len(names)


def test_offsets_outside_their_logs() -> None:
    nodes = group({}, {}, {f"orders/{n}": node(str(stored)) for n, stored in enumerate((4, 5, 9, 10))})
    logs = {TopicPartition("orders", n): LogRange(5, 9) for n in range(4)}
    assert kinds(examine(nodes, logs, ASSIGNORS)) == [
        ("no_members", "ids"),
        ("offset_after_log", "offsets/orders/3"),
        ("offset_before_log", "offsets/orders/0"),
    ]
    assert examine(nodes, {}, ASSIGNORS) == []  # no leader has replied: nothing is reported


def test_logs_that_do_not_answer() -> None:
    """Without a leader nobody can read the partition; without an answer nothing is known of it."""
    nodes = group({"g_a": ours(orders=1)}, {f"orders/{n}": node("g_a-0", OURS) for n in range(4)})
    first, second, *_ = (TopicPartition("orders", n) for n in range(4))
    silent: dict[TopicPartition, Why] = {first: Why("brokers unreachable", detail="refused")}
    found = examined("g", examine(nodes, silent, ASSIGNORS), not_asked(silent, {}, nodes, facts(nodes)))
    assert (found.health, found.findings, found.not_asked) == ("not examined", (), ("the log of 1 partition: refused",))
    silent[second] = Why("no leader", detail="LEADER_NOT_AVAILABLE")
    found = examined("g", examine(nodes, silent, ASSIGNORS), not_asked(silent, {}, nodes, facts(nodes)))
    assert (found.health, [each.id for each in found.findings]) == ("unhealthy", ["no_leader"])
    assert found.findings[0].see == "troubleshooting.html#no-partition-leader"


def test_every_finding_leads_to_a_command_and_a_section_that_exist() -> None:
    headings = anchors(PAGE)
    for kind, advice in ADVICE.items():
        assert advice.see in headings, kind
        whole_parser().parse_args(shlex.split(advice.command_for("my group"))[1:])


def test_only_lasting_problems_count() -> None:
    one, two = Symptom("unowned_partition", "/1", "nobody"), Symptom("unowned_partition", "/2", "nobody")
    assert lasting([one], [one, two]) == [one]
    assert lasting([one], [two]) == []


def test_with_an_unreadable_registration_no_assignment_is_computed() -> None:
    nodes = two_members(SWAPPED, "range", "range")
    poisoned = msgspec.structs.replace(nodes, registrations={**nodes.registrations, "g_c": node("t1", THEIRS)})
    assert kinds(examine(poisoned, {}, ASSIGNORS)) == [("unreadable_registration", "ids/g_c")]
    assert kinds(verify(poisoned)) == [("unreadable_registration", "ids/g_c")]


def test_that_every_one_of_no_partitions_has_an_owner_proves_nothing() -> None:
    """All members have died, or their topic was deleted."""
    nodes = two_members(RANGE, "range", "range")
    dead = msgspec.structs.replace(nodes, registrations={}, owners={})
    without = msgspec.structs.replace(nodes, topics={}, owners={})
    unread = msgspec.structs.replace(dead, registrations={"g_c": node("t1", THEIRS)})
    assert [verified(each).rebalanced for each in (nodes, dead, without, unread)] == [True, None, None, False]
    assert "Nothing to verify" in verified_table(verified(dead))


def test_members_and_owners_that_are_present() -> None:
    assert members_present(group({}, {}, {"orders/0": node("3")})) is None
    assert members_present(MIXED) == "has 2 members (g_a, g_b): stop them first"
    assert members_present(group({}, {"orders/0": node("z-0", OURS), "orders/1": node("z-0", OURS)})) == (
        "has owner nodes of z-0, not registered but alive: the session has to expire"
    )
    output = members_present(group({}, {"orders/1": node("z-0")}))
    assert output == (
        "has owner nodes that no session holds (/consumers/g/owners/orders/1): `kzconsumer groups clean` removes them"
    )


def test_leftover_nodes() -> None:
    owners = {"orders/0": node("z-0"), "orders/1": node("g_a-0", OURS)}
    gone = {"orders/0": node("3"), "gone/0": node("3")}
    live = group({"g_a": ours(orders=1), "g_z": node(ORIGINAL)}, owners, gone)
    assert [(each.kind, each.path) for each in leftovers(live)] == [
        ("persistent_owner", "/consumers/g/owners/orders/0"),
        ("persistent_registration", "/consumers/g/ids/g_z"),
        ("topic_gone", "/consumers/g/offsets/gone/0"),  # also in a group with members, if nobody owns it
    ]
    held = group({"g_a": ours(orders=1)}, {"gone/0": node("g_a-0", OURS)}, gone)
    assert leftovers(held) == []
    fewer = group({"g_a": ours(orders=1)}, {}, {"orders/3": node("1"), "orders/4": node("1")})
    assert [each.path for each in leftovers(fewer)] == ["/consumers/g/offsets/orders/4"]
    dead = group({}, {"orders/0": owners["orders/0"]}, gone, {"gone/0": record("range")})
    assert [each.path for each in leftovers(dead)] == [
        "/consumers/g/owners/orders/0",
        "/consumers/g/claims/gone/0",
        "/consumers/g/offsets/gone/0",
    ]
    assert [(each.path, each.before, each.after) for each in removal(dead, leftovers(dead)[:1])] == [
        ("/consumers/g/owners/orders/0", b"z-0", None)
    ]
    assert leftovers(group({}, {}, gone, topics={})) == []  # without topics in the cluster nothing can be concluded


def a_run(*topics: str, finished: int | None = None) -> Node:
    ends = {name: TopicEnds("0x1", {0: 5}) for name in topics}
    return node(
        encode_group_run(GroupRun(id="r", stop_at=-1, began=1, subscriptions=(), topics=ends, finished=finished))
    )


@pytest.mark.parametrize(
    ("run", "goes"),
    [
        (a_run("gone"), True),
        (a_run("gone", finished=2), True),
        (a_run("gone", "orders"), False),
        (a_run(), False),
        (node("of a later version"), False),
    ],
    ids=["all gone", "all gone, and over", "some are there", "of no topic", "unreadable"],
)
def test_a_run_of_deleted_topics(run: Node, goes: bool) -> None:
    dead = msgspec.structs.replace(group({}, {}), run=run)
    found = leftovers(dead)
    assert [each.path for each in found] == (["/consumers/g/run"] if goes else [])
    assert [(each.path, each.before) for each in removal(dead, found)] == [("/consumers/g/run", run.data)] * goes
    live = msgspec.structs.replace(group({"g_a": ours(orders=1)}, {}), run=run)
    assert leftovers(live) == []
    assert leftovers(msgspec.structs.replace(dead, all_topics=())) == []


@pytest.mark.parametrize(
    ("run", "goes"),
    [
        (a_run("orders", "pay"), True),  # it would wait for offsets of `pay` that no member may store again
        (a_run("orders", "pay", finished=2), False),
        (a_run("orders"), False),
        (node("of a later version"), False),
    ],
    ids=["waits for it", "over", "of others", "unreadable"],
)
def test_an_unfinished_run_ends_with_one_of_its_topics(run: Node, goes: bool) -> None:
    root = "/consumers/g"
    tree = {path: node("") for path in (root, f"{root}/offsets", f"{root}/offsets/pay", f"{root}/offsets/orders")}
    tree |= {f"{root}/offsets/pay/0": node("3"), f"{root}/run": run}
    expected = [f"{root}/offsets/pay/0", f"{root}/offsets/pay", *([f"{root}/run"] if goes else [])]
    assert [(each.path, each.after) for each in deletion(tree, "pay")] == [(path, None) for path in expected]
    assert {each.path for each in deletion(tree)} == set(tree)


def test_what_is_restored() -> None:
    saved = [SavedNode("/consumers/g/offsets/t/0", b"3"), SavedNode("/consumers/g", b"")]
    made = restoration(saved, {})
    assert [(each.path, each.after) for each in made] == [("/consumers/g", b""), ("/consumers/g/offsets/t/0", b"3")]
    assert restoration(saved, {each.path: node(each.data or b"") for each in saved}) == []
    with pytest.raises(ValueError, match="has other content now"):
        restoration(saved, {"/consumers/g/offsets/t/0": node("4")})
    with pytest.raises(ValueError, match="not a node of a group"):
        restoration([SavedNode("/brokers/ids/1", b"")], {})


def test_the_nodes_of_a_topic_that_no_broker_reports_are_kept_and_original_members_are_in_the_way() -> None:
    known = group({"g_a": ours(new=1), "g_b": node(ORIGINAL, THEIRS)}, {}, {"new/0": node("7")})
    migrating = msgspec.structs.replace(known, from_brokers=True)
    assert ("topic_missing", "/brokers/topics/new") in kinds(examine(known, {}, ASSIGNORS))
    found = kinds(examine(migrating, {}, ASSIGNORS))
    assert ("original_member", "ids/g_b") in found
    assert ("original_member", "ids/g_a") not in found
    assert "topic_missing" in dict(found)
    alone = msgspec.structs.replace(known, registrations={})
    assert [each.kind for each in leftovers(alone)] == ["topic_gone"]
    assert leftovers(msgspec.structs.replace(alone, from_brokers=True)) == []


def test_owners_of_a_topic_that_may_not_be_described_differ_from_no_assignment() -> None:
    """Its partitions are those that have an owner or an offset; how many there are is not known."""
    owners = {"closed/0": node("m-0", OURS), "closed/1": node("m-0", OURS)}
    nodes = group({"m": ours(closed=1)}, owners, {"closed/2": node("4")})
    cases: list[tuple[bool, set[str]]] = [(True, set()), (False, {"owner_not_as_computed", "topic_gone"})]
    for hidden, found in cases:
        known = msgspec.structs.replace(
            nodes, topics={"closed": KnownTopic((), None, hidden=hidden)}, from_brokers=True
        )
        assert {each.kind for each in examine(known, {}, ASSIGNORS)} == found
        assert [each.partition for each in partitions_of(facts(known))] == ([0, 1, 2] if hidden else [2])


@pytest.mark.parametrize(("recorded", "present"), [("0x1", True), ("0x2", False)])
def test_a_planned_range_of_an_earlier_topic_is_named_with_both(recorded: str, present: bool) -> None:
    plan = Plan(
        id="p", first=5, until=9, offset_version=1, records=4, checksum="", incarnation=recorded, epoch=0, isolation="",
        fingerprint="",
    )  # fmt: skip
    claim = node(encode_claim_record(ClaimRecord(1, "range", recorded, plan=plan)))
    nodes = group({"g_a": ours(orders=1)}, {"orders/0": node("g_a-0", OURS)}, claims={"orders/0": claim})
    found = [each for each in examine(nodes, {}, ASSIGNORS) if each.kind == "recreated_topic"]
    if present:
        assert found == []
        return
    (symptom,) = found
    assert symptom.path == "/consumers/g/claims/orders/0"
    assert symptom.reason == ("the planned range is of an earlier topic of that name (0x2); the present one is 0x1")
