"""Requests to the controller in the form of each version, and requests that are refused because they would have no
effect.
"""

from __future__ import annotations

import msgspec
import pytest

from kzconsumer.zookeeper.operations import Create
from kzconsumer_tools.cluster import requests
from kzconsumer_tools.cluster.description import (
    AssignmentNode,
    BrokerNode,
    ClusterDescription,
    ControllerNode,
    StateNode,
    TopicDescription,
    Unreadable,
    cluster_description,
    topic_description,
)
from kzconsumer_tools.cluster.requests import (
    SETTINGS,
    Configured,
    Deleted,
    Elected,
    Election,
    Reassigned,
    Reassignment,
    RequestRefused,
    Setting,
    changed,
    notification,
)
from kzconsumer_tools.tables.cluster_tables import configured_table, deleted_table, elected_table, reassigned_table


def cluster(
    *brokers: int,
    version: int = 5,
    controller: ControllerNode | None = ControllerNode(1, None),  # noqa: B008
    reassigning: tuple[tuple[str, int], ...] = (),
    electing: tuple[tuple[str, int], ...] = (),
) -> ClusterDescription:
    nodes = {number: BrokerNode(version, (), None, None) for number in brokers}
    return cluster_description(None, controller, 1, nodes, 1, (), reassigning, electing, ())


def topic(
    name: str = "t",
    adding: dict[int, tuple[int, ...]] | None = None,
    *,
    deleting: bool = False,
    isr: tuple[int, ...] = (1, 2),
    leader: int = 1,
) -> TopicDescription:
    states = {0: StateNode(leader, 0, 1, isr), 1: StateNode(2, 0, 1, (2,))}
    assignment = AssignmentNode({0: (1, 2), 1: (2,)}, adding or {}, {}, None)
    return topic_description(name, assignment, states, {}, deleting, {}, {1, 2}, ())


OLD = topic_description("old", None, {}, {}, False, {0: 4}, {0}, ())
UNREADABLE = topic_description("odd", None, {}, {}, False, {}, {1, 2}, [Unreadable("/brokers/topics/odd", "no JSON")])


def test_a_reassignment_is_written_as_every_controller_reads_it() -> None:
    found = requests.reassignments(cluster(1, 2), [topic()], {("t", 1): (2,), ("t", 0): (2, 1)})
    assert found == [Reassignment("t", 0, (1, 2), (2, 1)), Reassignment("t", 1, (2,), (2,))]
    assert [each.changes for each in found] == [True, False]
    data = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,1]}]}'
    assert requests.reassignment_request(found[:1]) == Create("/admin/reassign_partitions", data)
    assert requests.not_moved([topic()], found) == ["t-0"]
    assert requests.not_moved([topic(adding={1: (1,)})], found[1:]) == ["t-1"]
    assert requests.not_moved([topic()], found[1:]) == []


@pytest.mark.parametrize(
    ("at", "shown", "wanted", "output"),
    [
        (cluster(1, reassigning=(("x", 3),)), topic(), {("t", 0): (1,)}, "another reassignment is in progress: x-3"),
        (cluster(1), topic(), {("t", 0): (1, 2)}, "t-0: broker 2 is not alive; alive are 1"),
        (cluster(1), topic(), {("t", 0): (3, 2)}, "t-0: brokers 2, 3 are not alive"),
        (cluster(1, 2), topic(), {("t", 0): (1, 1)}, "t-0: broker 1 is given twice"),
        (cluster(1, 2), topic(), {("t", 0): ()}, "t-0: no replica given"),
        (cluster(1, 2), topic(), {("t", 2): (1,)}, "topic t has no partition 2 \\(it has 2\\)"),
        (cluster(1, 2), topic(adding={0: (2,)}), {("t", 0): (1,)}, "t-0: it is being reassigned"),
        (cluster(1, 2), topic(deleting=True), {("t", 0): (1,)}, "t is being deleted"),
        (cluster(1, 2), OLD, {("old", 0): (1,)}, "old is a topic in the format of Kafka 0.7"),
        (cluster(1, 2), UNREADABLE, {("odd", 0): (1,)}, "/brokers/topics/odd: no JSON"),
    ],
)
def test_requests_that_a_controller_would_ignore_are_refused(
    at: ClusterDescription, shown: TopicDescription, wanted: requests.Wanted, output: str
) -> None:
    with pytest.raises(RequestRefused, match=output):
        requests.reassignments(at, [shown], wanted)


def test_which_controllers_act_on_requests() -> None:
    requests.require_controller(cluster(1))
    for at, output in (
        (cluster(1, controller=None), "there is no controller"),
        (cluster(1, controller=ControllerNode(3000, None, kraft=True)), "a KRaft controller"),
        (cluster(1, version=0, controller=None), "brokers of 0.7"),
    ):
        with pytest.raises(RequestRefused, match=output):
            requests.require_controller(at)


def test_an_election_only_names_possible_leaders() -> None:
    assert requests.elections(cluster(1, 2), [topic(), topic("gone", deleting=True, leader=2), OLD], None) == []
    (found,) = requests.elections(cluster(1, 2), [topic(leader=2)], {"t": None})
    assert found == Election("t", 0, 2, 1, None)
    data = b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
    assert requests.election_request([found]) == Create("/admin/preferred_replica_election", data)
    assert (requests.not_elected([topic(leader=2)], [found]), requests.not_elected([topic()], [found])) == (["t-0"], [])
    assert requests.elections(cluster(1, 2), [topic(leader=2)], {"t": {1}}) == []
    no_states = topic_description("t", AssignmentNode({0: (1, 2)}, {}, {}, None), {}, {}, False, {}, {1, 2}, ())
    reasons = [
        requests.elections(cluster(2), [topic(leader=2)], None)[0].reason,
        requests.elections(cluster(1, 2), [topic(leader=2, isr=(2,))], None)[0].reason,
        requests.elections(cluster(1, 2), [no_states], None)[0].reason,
    ]
    assert reasons == ["not alive", "not in sync", "state unknown"]
    for at, shown, scope, output in (
        (cluster(1, 2, electing=(("t", 0),)), topic(), None, "another election is in progress: t-0"),
        (cluster(1, 2), topic(), {"t": {5}}, "has no partition 5"),
        (cluster(1, 2), topic(deleting=True), {"t": None}, "t is being deleted"),
        (cluster(1, 2), OLD, {"old": None}, "format of Kafka 0.7"),
        (cluster(1, 2), UNREADABLE, {"odd": None}, "/brokers/topics/odd: no JSON"),
    ):
        with pytest.raises(RequestRefused, match=output):
            requests.elections(at, [shown], scope)


def test_a_deletion_that_would_not_finish_or_is_harmful_is_refused() -> None:
    requests.require_deletable(cluster(1, 2), [topic()], {})
    assert requests.deletion_requests(["t"]) == [Create("/admin/delete_topics/t", b"")]
    for at, shown, groups, output in (
        (cluster(1, 2), topic("__consumer_offsets"), {}, "an internal topic of Kafka"),
        (cluster(1, 2), topic(), {"t": ["g"]}, "topic t is being consumed by group g; stop the members first"),
        (cluster(1, 2), topic(), {"t": ["g", "h"]}, "topic t is being consumed by groups g, h; stop"),
        (cluster(2), topic(), {}, "t: broker 1 is not alive"),
        (cluster(1, 2, reassigning=(("t", 0),)), topic(), {}, "t is being reassigned"),
        (cluster(1, 2), topic(deleting=True), {}, "t is being deleted"),
        (cluster(1, 2), OLD, {}, "format of Kafka 0.7"),
        (cluster(1, 2), UNREADABLE, {}, "/brokers/topics/odd: no JSON"),
    ):
        with pytest.raises(RequestRefused, match=output):
            requests.require_deletable(at, [shown], groups)


@pytest.mark.parametrize(
    ("brokers", "data"),
    [
        ([1, 1], b'"t"'),
        ([2], b'{"version":1,"entity_type":"topics","entity_name":"t"}'),
        ([3, 5], b'{"version":1,"entity_type":"topics","entity_name":"t"}'),
        ([4, 5], b'{"version":2,"entity_path":"topics/t"}'),
    ],
)
def test_brokers_are_notified_in_the_form_of_the_oldest(brokers: list[int], data: bytes) -> None:
    assert notification("t", brokers) == Create("/config/changes/config_change_", data, sequential=True)


def test_versions_without_a_form_in_common() -> None:
    with pytest.raises(ValueError, match="finish the upgrade"):
        notification("t", [1, 2])
    with pytest.raises(RequestRefused, match=r"0\.7"):
        requests.require_brokers(cluster(1, version=0))
    with pytest.raises(RequestRefused, match="no broker is alive"):
        requests.require_brokers(cluster())


def test_settings_that_change() -> None:
    config = {"retention.ms": "1", "odd": "x", "segment.ms": "5"}
    found = changed(config, {"retention.ms": "-1", "segment.ms": "5"}, ["odd", "flush.ms"], [4, 5])
    assert found == [Setting("retention.ms", "1", "-1"), Setting("odd", "x", None)]


@pytest.mark.parametrize("value", ["compact", "delete,compact", "compact,delete", "compact, delete"])
def test_policies_of_cleanup_are_a_list_in_any_order(value: str) -> None:
    assert changed({}, {"cleanup.policy": value}, [], [5]) == [Setting("cleanup.policy", None, value)]


@pytest.mark.parametrize(
    ("name", "value", "versions", "output"),
    [
        ("retention", "1", [5], "retention is not a setting that all brokers know; did you mean retention.ms?"),
        ("local.retention.ms", "1", [5, 4], "not a setting that all brokers know"),
        ("retention.ms", "-1", [1], "not a whole number from 0"),
        ("retention.ms", "1s", [5], "not a whole number from -1"),
        ("max.message.bytes", str(2**31), [5], "to 2147483647"),
        ("cleanup.policy", "delete,compact", [1], "not one of delete, compact"),
        ("cleanup.policy", "compact,", [4], "not one of delete, compact, nor several with commas"),
        ("compression.type", "zstd", [4, 5], "not one of uncompressed"),
        ("unclean.leader.election.enable", "yes", [5], "not one of true, false"),
        ("min.cleanable.dirty.ratio", "1.5", [5], "not from 0 to 1"),
        ("leader.replication.throttled.replicas", "all", [5], "neither \\* nor"),
    ],
)
def test_a_value_that_would_end_a_broker_is_refused(name: str, value: str, versions: list[int], output: str) -> None:
    with pytest.raises(ValueError, match=output):
        changed({}, {name: value}, [], versions)


def test_values_that_brokers_read() -> None:
    for name, value, version in (
        ("cleanup.policy", "delete,compact", 4),
        ("compression.type", "zstd", 5),
        ("min.cleanable.dirty.ratio", "0.25", 1),
        ("leader.replication.throttled.replicas", "0:1,1:2", 4),
        ("retention.bytes", "-1", 1),
    ):
        assert changed({}, {name: value}, [], [version]) == [Setting(name, None, value)]
    for kinds in SETTINGS.values():
        assert [since for since, _ in kinds] == sorted({since for since, _ in kinds})


def test_tables_show_what_is_done_and_what_is_not() -> None:
    found = (Reassignment("t", 0, (1, 2), (2, 1)), Reassignment("t", 1, (2,), (2,)))
    where = "--zookeeper zk"
    done = reassigned_table(Reassigned(True, "u.json", (), found), where).splitlines()
    assert done[-2:] == [
        "Done: 1 partition moved.",
        "To undo: kzconsumer topics reassign --file u.json --execute --zookeeper zk",
    ]
    pending = " ".join(reassigned_table(Reassigned(True, "u", tuple(f"t-{n}" for n in range(7)), found), where).split())
    assert "Requested, still pending: t-0, t-1, t-2, t-3, t-4 and 2 more. The controller continues" in pending
    assert reassigned_table(Reassigned(False, None, (), found[1:]), where).endswith("Nothing to change.")
    unable = Election("t", 0, None, 1, "not in sync")
    assert elected_table(Elected(False, (), (unable,))).splitlines()[1:] == [
        "        0       -  1 not in sync  t",
        "",
        "None of the preferred leaders can lead now.",
    ]
    assert "delete.topic.enable=false" in deleted_table(Deleted(True, ("t",), ("t",), 2))
    settings = (Setting("retention.ms", "1", None), Setting("flush.ms", None, "2"))
    undo = configured_table(Configured("t", True, settings), where).splitlines()[-1]
    assert undo == ("To undo: kzconsumer topics config set t retention.ms=1 --unset flush.ms --execute --zookeeper zk")
    assert msgspec.json.encode(found[0]) == b'{"topic":"t","partition":0,"old":[1,2],"new":[2,1]}'
