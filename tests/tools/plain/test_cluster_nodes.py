"""The cluster's nodes as found on real servers of every version (0.7: as its code reads them), and their tables."""

from __future__ import annotations

import pytest

from kzconsumer.registry.nodes import BrokerListener
from kzconsumer_tools.cluster.description import (
    AssignmentNode,
    BrokerNode,
    ControllerNode,
    StateNode,
    Unreadable,
    cluster_description,
    decode_assignment,
    decode_broker,
    decode_config,
    decode_controller,
    decode_epoch,
    decode_partition_counts,
    decode_requested,
    decode_state,
    topic_description,
)
from kzconsumer_tools.tables.cluster_tables import cluster_table, describe_table, topics_table

BROKERS = {
    "0.7": (b"127.0.0.1-1329780000000:127.0.0.1:19070", BrokerNode(0, (), None, None)),
    "0.8.2.2": (
        b'{"jmx_port":-1,"timestamp":"1795259478465","host":"127.0.0.1","version":1,"port":19081}',
        BrokerNode(1, (), 1795259478465, None),
    ),
    "1.1.1": (
        b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:19111"],'
        b'"rack":"a","jmx_port":-1,"host":"127.0.0.1","timestamp":"1795259471271","port":19111,"version":4}',
        BrokerNode(4, (), 1795259471271, "a"),
    ),
    "3.9.1": (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://127.0.0.1:19391"],"jmx_port":-1,"port":19391,"host":"127.0.0.1","version":5,'
        b'"timestamp":"1795259464950"}',
        BrokerNode(5, (), 1795259464950, None),
    ),
}
PORTS = {"0.7": 19070, "0.8.2.2": 19081, "1.1.1": 19111, "3.9.1": 19391}


@pytest.mark.parametrize("version", BROKERS)
def test_brokers(version: str) -> None:
    data, expected = BROKERS[version]
    found = decode_broker(data)
    assert found == BrokerNode(
        expected.version,
        (BrokerListener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", PORTS[version]),),
        expected.since,
        expected.rack,
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"version":1,"brokerid":1,"timestamp":"1795259476882"}', ControllerNode(1, 1795259476882)),
        (
            b'{"version":2,"brokerid":1,"timestamp":"1795259465089","kraftControllerEpoch":-1}',
            ControllerNode(1, 1795259465089),
        ),
        (b"3", ControllerNode(3, None)),
    ],
)
def test_controllers(data: bytes, expected: ControllerNode) -> None:
    assert decode_controller(data) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            b'{"version":1,"partitions":{"2":[2,1],"0":[2,1]}}',
            AssignmentNode({2: (2, 1), 0: (2, 1)}, {}, {}, None),
        ),
        (
            b'{"partitions":{"0":[1,2]},"topic_id":"zYOdNoY4T9Gxvu4bQ8fiDw","adding_replicas":{"0":[2]},'
            b'"removing_replicas":{},"version":3}',
            AssignmentNode({0: (1, 2)}, {0: (2,)}, {}, "zYOdNoY4T9Gxvu4bQ8fiDw"),
        ),
    ],
)
def test_assignments(data: bytes, expected: AssignmentNode) -> None:
    assert decode_assignment(data) == expected


def test_states_epochs_settings_and_requests() -> None:
    state = b'{"controller_epoch":4,"leader":2,"version":1,"leader_epoch":0,"isr":[2,1]}'
    assert decode_state(state) == StateNode(2, 0, 4, (2, 1))
    assert decode_epoch(b"4") == 4
    config = b'{"version":1,"config":{"retention.ms":"86400000"}}'
    assert decode_config(config) == {"retention.ms": "86400000"}
    moving = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,1]}]}'
    assert decode_requested(moving) == {("t", 0): (2, 1)}
    electing = b'{"version":1,"partitions":[{"topic":"t","partition":1}]}'
    assert decode_requested(electing) == {("t", 1): ()}
    assert decode_partition_counts({"0": b"4", "2": b"1"}) == {0: 4, 2: 1}


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_broker, b"nobody"),
        (decode_broker, b"a:b:c"),
        (decode_broker, b'{"version":1,"timestamp":"soon","host":"h","port":1}'),
        (decode_broker, b'{"version":1,"timestamp":"99999999999999999","host":"h","port":1}'),
        (decode_controller, b"{}"),
        (decode_controller, b"\xff"),
        (decode_epoch, b"x"),
        (decode_assignment, b'{"partitions":{"-1":[1]}}'),
        (decode_state, b'{"leader":1}'),
        (decode_config, b"[]"),
        (decode_requested, b'{"partitions":[{"topic":"t"}]}'),
        (lambda data: decode_partition_counts({"partitions": data}), b"1"),
    ],
)
def test_what_no_broker_writes_is_reported(decode, data: bytes) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"\w"):
        decode(data)


def test_tables_show_problems_and_whole_names() -> None:
    long = "orders-" + "x" * 200
    topic = topic_description(
        long,
        AssignmentNode({0: (1, 2), 1: (2, 1), 2: (1, 2), 3: (2, 1)}, {0: (3,)}, {0: (2,)}, None),
        {0: StateNode(1, 5, 4, (1, 2)), 1: StateNode(-1, 6, 4, (1,)), 3: StateNode(2, 7, 4, (1, 2))},
        {"retention.ms": "1"},
        True,
        {},
        {1},
        (),
    )
    old = topic_description("old", None, {}, {}, False, {0: 4, 2: 1}, {1}, ())
    assert (topic.leaderless, topic.under_replicated, old.partition_count) == (3, 2, 5)
    listing = topics_table([topic, old]).splitlines()
    assert [line.split()[:5] for line in listing[1:]] == [["4", "2", "3", "2", "1"], ["5", "-", "0", "0", "0"]]
    assert listing[2].endswith("old (0.7)")
    assert topic.topic in listing[1]
    described = describe_table([topic]).splitlines()
    assert described[1:] == [
        "to be deleted",
        "retention.ms = 1",
        "",
        "PARTITION    LEADER  EPOCH  REPLICAS   IN SYNC",
        "        0         1      5  1,2 +3 -2  1,2",
        "        1         -      6  2,1        1",
        "        2         -      -  1,2        none",
        "        3  2 (gone)      7  2,1        1,2",
    ]
    assert describe_table([old]).splitlines()[1:] == [
        "in the form of Kafka 0.7:",
        "BROKER  PARTITIONS",
        "     0  0-0 to 0-3",
        "     2  2-0 to 2-0",
    ]
    node = BrokerNode(5, (BrokerListener("INSIDE", "SSL", "h" * 90, 1),), None, None)
    fault = Unreadable("/controller_epoch", "not a number")
    cluster = cluster_description(None, None, None, {1: node}, 1, ["t"], [("t", 1)], [], [fault])
    lines = cluster_table(cluster).splitlines()
    assert lines[:3] == [
        "cluster without an id: 1 broker, 1 topic",
        "controller: none; epoch -",
        "Nobody elects leaders: `topics` shows what the last controller has written.",
    ]
    assert "To be deleted: t" in lines
    assert "To be reassigned: t-1" in lines
    assert lines[-1] == "  /controller_epoch: not a number"
    assert any("h" * 90 in line for line in lines)
