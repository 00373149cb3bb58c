"""The contents of znodes, as brokers and original consumers of every version were observed to write them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kzconsumer.model import MOST_STREAMS
from kzconsumer.registry.claim_record import ClaimRecord, Plan, decode_claim_record, encode_claim_record
from kzconsumer.registry.group_records import (
    STATIC,
    Registration,
    decode_group_run,
    decode_registration,
    encode_registration,
)
from kzconsumer.registry.nodes import (
    MOST_NESTED,
    MOST_PARTITIONS,
    BrokerListener,
    decode_cluster_id,
    decode_listeners,
    decode_offset,
    decode_topic,
    encode_offset,
    read_json,
)
from kzconsumer.settings.value_readers import BLACK_LIST, WHITE_LIST, Include
from kzconsumer_tools.cluster.description import decode_controller

MAP = '"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
BROKERS = {
    "0.8.2.2": '{"jmx_port":-1,"timestamp":"1795259478465","host":"127.0.0.1","version":1,"port":19081}',
    "0.10.2.2": "{" + MAP + '"endpoints":["PLAINTEXT://127.0.0.1:19101"],"jmx_port":-1,"host":"127.0.0.1",'
    '"timestamp":"1795259482462","port":19101,"version":4}',
    "1.1.1": "{" + MAP + '"endpoints":["PLAINTEXT://127.0.0.1:19111"],"jmx_port":-1,"host":"127.0.0.1",'
    '"timestamp":"1795259471271","port":19111,"version":4}',
    "2.8.2": '{"features":{},' + MAP + '"endpoints":["PLAINTEXT://127.0.0.1:19281"],"jmx_port":-1,"port":19281,'
    '"host":"127.0.0.1","version":5,"timestamp":"1795259485734"}',
    "3.9.1": '{"features":{},' + MAP + '"endpoints":["PLAINTEXT://127.0.0.1:19391"],"jmx_port":-1,"port":19391,'
    '"host":"127.0.0.1","version":5,"timestamp":"1795259464950"}',
}
PORTS = {"0.8.2.2": 19081, "0.10.2.2": 19101, "1.1.1": 19111, "2.8.2": 19281, "3.9.1": 19391}

TOPICS = {
    "0.8.2.2": '{"version":1,"partitions":{"2":[2,1],"1":[1,2],"3":[1,2],"0":[2,1]}}',
    "2.8.2": '{"partitions":{"0":[1],"1":[1],"2":[1],"3":[1]},"topic_id":"1fjabeWDQgyih-sBSPBUjA",'
    '"adding_replicas":{},"removing_replicas":{},"version":3}',
    "3.9.1": '{"partitions":{"0":[1,2],"1":[2,1],"2":[1,2],"3":[2,1]},"topic_id":"zYOdNoY4T9Gxvu4bQ8fiDw",'
    '"adding_replicas":{},"removing_replicas":{},"version":3}',
}

REGISTRATIONS = [
    ('{"version":1,"subscription":{"t100l_v1":4},"pattern":"static","timestamp":"1795260559322"}', STATIC, "t100l_v1"),
    ('{"version":1,"subscription":{"znt":4},"pattern":"white_list","timestamp":"1795260126739"}', WHITE_LIST, "znt"),
    ('{"version":1,"subscription":{"zn.*":4},"pattern":"white_list","timestamp":"1795260127057"}', WHITE_LIST, "zn.*"),
    ('{"version":1,"subscription":{"x|y":4},"pattern":"black_list","timestamp":"1795260127057"}', BLACK_LIST, "x|y"),
]


def endpoints(*uris: str, **fields: Any) -> bytes:
    return json.dumps({"endpoints": uris, "host": "named", "port": 1, "version": 4} | fields).encode()


def plaintext(host: str, port: int) -> BrokerListener:
    return BrokerListener("PLAINTEXT", "PLAINTEXT", host, port)


@pytest.mark.parametrize("version", BROKERS)
def test_brokers_of_every_version(version: str) -> None:
    assert decode_listeners(BROKERS[version].encode()) == (plaintext("127.0.0.1", PORTS[version]),)


@pytest.mark.parametrize(
    ("uri", "host", "port"),
    [
        ("PLAINTEXT://broker-1.example.com:9092", "broker-1.example.com", 9092),
        ("PLAINTEXT://[fe80::1%eth0]:9092", "fe80::1%eth0", 9092),
        ("PLAINTEXT://:9092", "named", 9092),
    ],
)
def test_endpoints(uri: str, host: str, port: int) -> None:
    assert decode_listeners(endpoints(uri)) == (plaintext(host, port),)


def test_listeners_with_and_without_names() -> None:
    names = {"IN_SIDE": "PLAINTEXT", "OUT": "SSL"}
    data = endpoints("OUT://out:1", "IN_SIDE://in:2", listener_security_protocol_map=names)
    assert decode_listeners(data) == (
        BrokerListener("OUT", "SSL", "out", 1),
        BrokerListener("IN_SIDE", "PLAINTEXT", "in", 2),
    )
    before_0_10_2 = endpoints("SASL_SSL://secure:3", "PLAINTEXT://plain:4")
    assert decode_listeners(before_0_10_2) == (
        BrokerListener("SASL_SSL", "SASL_SSL", "secure", 3),
        plaintext("plain", 4),
    )


def test_a_broker_without_listeners() -> None:
    assert decode_listeners(endpoints()) == ()
    assert decode_listeners(endpoints("nonsense")) == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"{}",
        b'{"version":1,"host":"a","port":null}',
        b'{"version":1,"host":"a","port":"x"}',
        b'{"endpoints":["PLAINTEXT://a:1"],"listener_security_protocol_map":["PLAINTEXT"]}',
    ],
)
def test_invalid_broker_registrations(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_listeners(data)


@pytest.mark.parametrize("version", TOPICS)
def test_topics_of_every_version(version: str) -> None:
    assert decode_topic(TOPICS[version].encode()) == (0, 1, 2, 3)


def test_partitions_ascend_as_numbers() -> None:
    partitions = {str(number): [1] for number in range(12)}
    assert decode_topic(json.dumps({"version": 1, "partitions": partitions}).encode()) == tuple(range(12))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"partitions":[0]}', b'{"partitions":{"x":[1]}}', b"\xff"])
def test_invalid_topics(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_topic(data)


@pytest.mark.parametrize(("text", "pattern", "topic"), REGISTRATIONS)
def test_registrations_of_original_members(text: str, pattern: str, topic: str) -> None:
    assert decode_registration(text.encode()) == Registration(pattern, {topic: 4}, ours=False)


def test_our_registration_is_readable_by_the_original() -> None:
    data = encode_registration({"my.topic-2": 2, "t1": 3}, 1795260071530, "0.1")
    fields = json.loads(data)
    assert fields == {
        "version": 1,
        "subscription": {"my.topic-2": 2, "t1": 3},
        "pattern": "static",
        "timestamp": "1795260071530",
        "kzconsumer": "0.1",
    }
    assert decode_registration(data) == Registration(STATIC, {"my.topic-2": 2, "t1": 3}, ours=True)


def test_a_registration_may_name_a_status_page_of_another_machine() -> None:
    data = encode_registration({"t": 1}, 1, "0.1", status="orders-1.example:9308")
    assert decode_registration(data) == Registration(STATIC, {"t": 1}, ours=True, status="orders-1.example:9308")


@pytest.mark.parametrize(
    "status",
    [
        "javascript:alert(1)",
        "a b:1",
        "x:99999",
        "http://x:1",
        "x",
        "u@x:1",
        "unix:/s",
        "127.0.0.1:1",
        "localhost:1",
        7,
        {},
    ],
)
def test_other_addresses_of_status_pages_are_ignored(status: object) -> None:
    data = json.dumps({"subscription": {"t": 1}, "pattern": "static", "status": status}).encode()
    assert decode_registration(data) == Registration(STATIC, {"t": 1}, ours=False)


def test_a_backslash_that_old_writers_did_not_escape() -> None:
    data = rb'{"version":1,"subscription":{"my\.topic.*":1},"pattern":"white_list","timestamp":"1"}'
    assert decode_registration(data).subscription == {r"my\.topic.*": 1}


def test_any_other_pattern_is_static() -> None:
    assert decode_registration(b'{"subscription":{"t":1},"pattern":"whatever"}').pattern == STATIC


def test_a_static_member_may_subscribe_to_nothing() -> None:
    assert decode_registration(b'{"subscription":{},"pattern":"static"}') == Registration(STATIC, {}, ours=False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"t1",  # pykafka's
        b"{}",
        b"[]",
        b'{"subscription":{"t":1}}',
        b'{"pattern":"static"}',
        b'{"subscription":["t"],"pattern":"static"}',
        b'{"subscription":{"t":"1"},"pattern":"static"}',
        b'{"subscription":{"t":true},"pattern":"static"}',
        b'{"subscription":{"t":0},"pattern":"static"}',
        b'{"subscription":{"t":1.5},"pattern":"static"}',
        b'{"subscription":{},"pattern":"white_list"}',
        b'{"subscription":{"\xff":1},"pattern":"static"}',
    ],
)
def test_invalid_registrations(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_registration(data)


@pytest.mark.parametrize("offset", [0, 24, 2**63 - 1])
def test_offsets_are_decimal_text(offset: int) -> None:
    assert encode_offset(offset) == str(offset).encode()
    assert decode_offset(encode_offset(offset)) == offset


def test_an_offset_with_a_line_end() -> None:
    """Written by hand: `echo 24 | zkCli set`."""
    assert decode_offset(b"24\n") == 24


def test_no_offset_in_the_originals_words() -> None:
    assert decode_offset(b"-1") is None


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"1.5", b"0x10", b"1_000", b"\xd9\xa3", b"-5", str(2**63).encode(), b"9" * 5000],
)
def test_invalid_offsets(data: bytes) -> None:
    """Values that no broker accepts: one such node must not end every member that claims the partition."""
    with pytest.raises(ValueError):  # noqa: PT011
        decode_offset(data)


def test_claim_records() -> None:
    record = ClaimRecord(version=1, assignor="range", incarnation="0x2a", epoch=3, fingerprint="9f3c")
    data = encode_claim_record(record)
    assert json.loads(data) == {
        "version": 1,
        "assignor": "range",
        "incarnation": "0x2a",
        "epoch": 3,
        "fingerprint": "9f3c",
        "plan": None,
    }
    assert decode_claim_record(data) == record


PLAN = Plan(
    id="0a1b2c3d",
    first=3,
    until=7,
    offset_version=12,
    records=4,
    checksum="8b2f",
    incarnation="0x2a",
    epoch=1,
    isolation="read_committed",
    fingerprint="9f3c",
)


def test_a_plan_in_its_claim_record() -> None:
    record = ClaimRecord(1, "range", "0x2b", epoch=1, fingerprint="9f3c", plan=PLAN)
    data = encode_claim_record(record)
    assert json.loads(data)["plan"] == {
        "id": "0a1b2c3d",
        "first": 3,
        "until": 7,
        "offset_version": 12,
        "records": 4,
        "checksum": "8b2f",
        "incarnation": "0x2a",
        "epoch": 1,
        "isolation": "read_committed",
        "fingerprint": "9f3c",
    }
    assert decode_claim_record(data) == record


def test_a_plan_with_a_count_of_attempts_is_read_without_it() -> None:
    record = ClaimRecord(1, "range", "0x2a", plan=PLAN)
    data = encode_claim_record(record)
    counted = data.replace(b'"isolation"', b'"attempts":0,"isolation"')
    assert counted != data
    assert decode_claim_record(counted) == record


def test_a_plan_lists_recorded_steps_if_there_are_any() -> None:
    """A plan without steps is readable by versions that do not know them."""
    assert PLAN.done == ()
    record = ClaimRecord(1, "range", "0x2a", plan=msgspec.structs.replace(PLAN, steps=("table", "index")))
    found = decode_claim_record(encode_claim_record(record))
    assert found == record
    assert found.plan is not None
    assert found.plan.done == ("table", "index")


OWNED = ClaimRecord(1, "range", "0x2a", epoch=1, fingerprint="9f3c")


def test_a_commit_marks_the_record_of_a_replayable_sink() -> None:
    """A record of an earlier version has no mark, which is not the mark 0."""
    assert OWNED.committed_until is None
    marked = OWNED.after(7, None, 1)
    assert json.loads(encode_claim_record(marked))["mark"] == {
        "until": 7,
        "incarnation": "0x2a",
        "epoch": 1,
        "fingerprint": "9f3c",
    }
    assert decode_claim_record(encode_claim_record(marked)) == marked
    assert marked.committed_until == 7
    assert marked.after(3, PLAN, 1) == msgspec.structs.replace(marked, plan=PLAN), "a mark went back"
    assert marked.after(9, None, 1).committed_until == 9


def test_a_mark_names_the_last_range_that_was_written() -> None:
    """Not one that was quarantined or had no records: the destination never received those."""
    written = OWNED.after(7, None, 1, (3, 7))
    assert json.loads(encode_claim_record(written))["mark"]["written"] == [3, 7]
    assert decode_claim_record(encode_claim_record(written)) == written
    assert OWNED.after(7, None, 1).last_written is None
    assert written.after(9, None, 1).last_written == (3, 7)
    assert written.after(9, None, 1, (7, 9)).last_written == (7, 9)
    assert written.after(9, None, 2).last_written is None


@pytest.mark.parametrize("other", [{"incarnation": "0x2b"}, {"epoch": 2}, {"fingerprint": "77aa"}, {"fingerprint": ""}])
def test_a_mark_is_of_one_destination_topic_and_epoch(other: dict[str, Any]) -> None:
    found = msgspec.structs.replace(OWNED.after(7, None, 1), **other)
    assert found.committed_until is None
    after = found.after(3, None, found.epoch)
    assert after.committed_until == (3 if found.fingerprint else None)
    if not found.fingerprint:
        assert after == found, "a stream's commit changed the mark of a destination"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"first":3', b'"first":7'),
        (b'"first":3', b'"first":-1'),
        (b'"first":3', b'"first":"3"'),
        (b'"until":7', b'"until":9223372036854775808'),
        (b'"records":4', b'"records":-4'),
        (b'"id":"0a1b2c3d"', b'"id":7'),
        (b'"isolation":"read_committed",', b""),
        (b'"records":4', b'"records":4,"lease":7'),
        (b'"records":4', b'"records":4,"steps":[7]'),
    ],
)
def test_a_plan_of_another_version_is_not_read(old: bytes, new: bytes) -> None:
    data = encode_claim_record(ClaimRecord(1, "range", "0x2a", plan=PLAN))
    assert old in data
    with pytest.raises(ValueError, match="not a claim record"):
        decode_claim_record(data.replace(old, new, 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"{",
        b"[]",
        b'{"version":2,"assignor":"range","incarnation":"0x2a"}',
        b'{"version":"1","assignor":"range","incarnation":"0x2a"}',
        b'{"version":1,"assignor":"range","incarnation":"0x2a","lease":7}',
        b'{"version":1,"assignor":"range"}',
    ],
)
def test_invalid_claim_records(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_claim_record(data)


# Any program may write this, and no member does: the members that read it only get the error.

READERS: list[tuple[Callable[[bytes], object], bytes]] = [
    (decode_registration, b'{"subscription":{"t":1},"pattern":"static","more":%s}'),
    (decode_registration, b'{"subscription":{"t":%s},"pattern":"static"}'),
    (decode_topic, b'{"partitions":{"0":%s}}'),
    (decode_listeners, b'{"endpoints":[%s]}'),
    (decode_listeners, b'{"endpoints":["A://a:1"],"listener_security_protocol_map":{"A":%s}}'),
    (decode_claim_record, b'{"version":1,"assignor":"range","incarnation":"0x2a","plan":%s}'),
    (decode_group_run, b'{"version":1,"id":%s}'),
    (decode_cluster_id, b'{"id":%s}'),
    (decode_controller, b'{"brokerid":1,"more":%s}'),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("depth", [5000, 970, 950, 900])
def test_deeply_nested_json_is_unreadable(read: tuple[Callable[[bytes], object], bytes], depth: int) -> None:
    """Just below the depth at which reading fails, the error must not show the value, since that would fail."""
    decode, form = read
    with contextlib.suppress(ValueError):
        decode(form % (b"[" * depth + b"]" * depth))


def test_every_python_reads_nodes_that_are_nested_equally_deep() -> None:
    """Members of one group may run different versions, whose own limits differ."""
    assert read_json(b"[" * MOST_NESTED + b"]" * MOST_NESTED)
    assert len(read_json(b"[" + b",".join([b"[]"] * 5000) + b"]")) == 5000
    text = "[{" * 500 + '\\"[' * 500
    assert read_json(msgspec.json.encode({"a": text})) == {"a": text}
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(b'{"a":' * MOST_NESTED + b"[]" + b"}" * MOST_NESTED)


@pytest.mark.parametrize("read", READERS)
def test_an_oversized_node_is_unreadable(read: tuple[Callable[[bytes], object], bytes]) -> None:
    decode, form = read
    with pytest.raises(ValueError, match="bytes"):
        decode(form % (b'"' + b"x" * (8 << 20) + b'"'))


@pytest.mark.parametrize(
    "subscription", [{"t": MOST_STREAMS}, {f"t{n}": 1 for n in range(MOST_STREAMS)}, {"a": 1, "b": MOST_STREAMS - 1}]
)
def test_a_registration_of_very_many_streams(subscription: dict[str, int]) -> None:
    assert decode_registration(encode_registration(subscription, 1, "0.1")).subscription == subscription


@pytest.mark.parametrize("pattern", [STATIC, WHITE_LIST])
@pytest.mark.parametrize(
    "subscription", [{"t": 1_000_000}, {"t": MOST_STREAMS + 1}, {"t": MOST_STREAMS, "u": 1}, {"t": 10**30}]
)
def test_a_registration_of_too_many_streams(subscription: dict[str, int], pattern: str) -> None:
    data = json.dumps({"subscription": subscription, "pattern": pattern}).encode()
    with pytest.raises(ValueError, match=f"more than {MOST_STREAMS} streams"):
        decode_registration(data)


def test_a_registration_that_would_be_unreadable_is_refused() -> None:
    with pytest.raises(ValueError, match=f"more than {MOST_STREAMS} streams"):
        Registration.of_topics({"t": MOST_STREAMS, "u": 1})
    with pytest.raises(ValueError, match=f"more than {MOST_STREAMS} streams"):
        Registration.of_filter(Include("a.*"), MOST_STREAMS + 1)


@pytest.mark.parametrize("topic", ["a\0b", "\x1f"])
def test_a_topic_name_that_is_an_invalid_zookeeper_path(topic: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        decode_registration(json.dumps({"subscription": {topic: 1}, "pattern": "static"}).encode())


def test_an_error_shows_the_beginning_of_the_invalid_text() -> None:
    with pytest.raises(ValueError, match="not a number of streams") as refused:
        decode_registration(json.dumps({"subscription": {"t" * 100_000: ["s"] * 10_000}, "pattern": "static"}).encode())
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("number", ["-1", "+1", " 1", "1_0", "\u0663", str(2**31), "9" * 5000])
def test_a_partition_number_outside_the_protocol(number: str) -> None:
    """Its number would be sent to brokers, in 32 bits."""
    with pytest.raises(ValueError, match="is not a partition"):
        decode_topic(json.dumps({"partitions": {"0": [1], number: [1]}}).encode())


def test_a_topic_of_too_many_partitions() -> None:
    partitions = {str(number): [1] for number in range(MOST_PARTITIONS)}
    assert len(decode_topic(json.dumps({"partitions": partitions}).encode())) == MOST_PARTITIONS
    with pytest.raises(ValueError, match=f"more than {MOST_PARTITIONS} partitions"):
        decode_topic(json.dumps({"partitions": partitions | {"100000": [1]}}).encode())
