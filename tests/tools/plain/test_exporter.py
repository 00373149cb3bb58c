"""What the exporter makes of its readings, and what a reading costs ZooKeeper."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import anyio
import anyio.lowlevel
import msgspec
import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from kzconsumer.clock import now
from kzconsumer.lag.partition import Why
from kzconsumer.model import TopicPartition
from kzconsumer.registry.nodes import MOST_PARTITIONS
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.settings import Settings
from kzconsumer.status.partition_health import WINDOW
from kzconsumer.zookeeper.operations import Node, Stat
from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_tools.exporter import burrow, group_feed
from kzconsumer_tools.exporter import exporter as exporter_module
from kzconsumer_tools.exporter.exporter import Exporter, ExporterReading
from kzconsumer_tools.exporter.exporter_server import families, serving
from kzconsumer_tools.exporter.seen_groups import Histories, SeenGroup, group_of_nodes
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.groups.group_nodes import GroupNodes
from tests.support.readings import looked
from tests.support.zookeeper_sessions import until
from tests.tools.plain.test_group_description import group, node, ours

MONITORING = Path(__file__).parents[3] / "monitoring"
INTERVAL = 30.0
P = [TopicPartition("orders", number) for number in range(4)]


def stored(**offsets: tuple[int, float]) -> dict[str, Node]:
    """Partition `p0` -> offset, and when it was stored."""
    return {
        f"orders/{name[1:]}": Node(b"%d" % offset, Stat(1, 1, 0, 0, 0, 0, 0, int(at * 1000)))
        for name, (offset, at) in offsets.items()
    }


def follow(
    *readings: tuple[GroupNodes, Mapping[TopicPartition, int]],
    written: Mapping[tuple[TopicPartition, int], float] = MappingProxyType({}),
) -> SeenGroup:
    histories = Histories(INTERVAL)
    for number, (nodes, ends) in enumerate(readings):
        logs = {partition: LogRange(0, end) for partition, end in ends.items()}
        seen = looked(histories, {"g": group_of_nodes(nodes)}, logs, written, INTERVAL * number)
    return seen["g"]


def test_a_group_that_cannot_be_read_for_a_while_keeps_what_is_known_of_its_logs() -> None:
    """The next record is as old as the last look at a log that did not have it yet."""
    histories = Histories(INTERVAL)
    behind = {"g": group_of_nodes(group({}, {}, stored(p0=(5, 0))))}
    for number, (groups, unread) in enumerate([(behind, ()), ({}, ("g",)), ({}, ("g",)), (behind, ())]):
        logs = {P[0]: LogRange(0, 5 + number)}
        seen = looked(histories, groups, logs, {}, INTERVAL * number, unread=unread)
    (partition,) = seen["g"].partitions
    assert (partition.lag, partition.seconds) == (3, 3 * INTERVAL)


def test_a_stalled_a_rewound_and_a_slow_partition() -> None:
    """Judged as Burrow would; `standing` counts from the first observation, `seconds` by the growth of the log."""
    readings = []
    for number in range(5):
        at = INTERVAL * number - 1
        offsets = stored(p0=(5, -1), p1=(50 - number, at), p2=(8 + number, at), p3=(20 + number, at))
        ends = {P[0]: 10 + number, P[1]: 60, P[2]: 10 + number, P[3]: 20 + number}
        readings.append((group({}, {}, offsets), ends))
    seen = follow(*readings)
    judged = [(each.judgement, each.lag, each.standing) for each in seen.partitions]
    assert judged == [("OK", 9, 120.0), ("REWIND", 14, 0.0), ("WARN", 2, 0.0), ("OK", 0, 0.0)]
    assert [each.seconds for each in seen.partitions] == [None, None, 60.0, 0.0]
    assert (seen.total.lag, seen.total.lag_seconds, seen.total.seconds, seen.members) == (25, None, 60.0, 0)
    assert burrow.group_status(seen) == "ERR"
    silent = readings + [readings[-1]] * WINDOW
    later = follow(*silent)
    assert [each.judgement for each in later.partitions] == ["STOP", "STOP", "STOP", "OK"]


def test_offsets_that_are_no_numbers_and_nodes_of_no_partition() -> None:
    """An unreadable offset makes the sum unknown; `00` is no partition; 2147483647 makes no list of that length."""
    nodes = stored(p0=(10, 0.0), p2147483647=(5, 0.0)) | {"orders/1": node("x"), "orders/00": node("7")}
    seen = follow((group({}, {}, nodes), {P[0]: 10, P[1]: 10}))
    assert [(each.partition, each.stored) for each in seen.partitions] == [(0, 10), (1, None), (2**31 - 1, 5)]
    assert (seen.total.lag, seen.total.unknown, seen.total.gone) == (None, {"offset unreadable": 1}, 1)
    assert burrow.group_status(seen) == "UNKNOWN"
    unreadable = burrow.status("c", "g", seen, whole=True)["partitions"][1]
    assert (unreadable["status"], unreadable["start"], unreadable["current_lag"]) == ("UNKNOWN", None, None)
    assert len(burrow.consumer(seen)["orders"]) == 2
    assert len(burrow.topic_offsets({}, "orders", [0, MOST_PARTITIONS + 1])) == MOST_PARTITIONS


def test_a_member_whose_registration_is_unreadable_is_a_member() -> None:
    seen = follow((group({"m": node("not json", 0x11)}, {}, stored(p0=(5, 0.0))), {P[0]: 10}))
    assert seen.members == 1


def test_a_partition_is_not_stalled_before_its_first_commit() -> None:
    first = group({"m": ours(orders=2)}, {"orders/0": node("m-0", 0x11)}, {})
    readings = [(first, {P[0]: 10})] * 20
    seen = follow(*readings, (group({"m": ours(orders=2)}, {}, stored(p0=(5, 600.0))), {P[0]: 10}))
    assert (seen.partitions[0].lag, seen.partitions[0].standing) == (5, 0.0)


@given(st.dictionaries(st.sampled_from(P), st.integers(0, 100)), st.lists(st.integers(0, 100), min_size=4, max_size=4))
def test_unknown_is_never_zero(ends: dict[TopicPartition, int], offsets: list[int]) -> None:
    """Without an end, or with one before the offset, there is no lag, no sum, no age and no judgement but UNKNOWN."""
    known = stored(**{f"p{number}": (offset, 0.0) for number, offset in enumerate(offsets)})
    seen = follow((group({}, {}, known), ends))
    for each, offset in zip(seen.partitions, offsets, strict=True):
        end = ends.get(TopicPartition("orders", each.partition))
        assert each.lag == (end - offset if end is not None and end >= offset else None)
        if each.lag is None:
            assert (each.seconds, each.standing, each.judgement) == (None, None, None)
    lags = [each.lag for each in seen.partitions]
    status = burrow.status("c", "g", seen, whole=True)
    assert status["totallag"] == seen.total.lag == (None if None in lags else sum(filter(None, lags)))
    assert [each["current_lag"] for each in status["partitions"]] == lags
    assert (status["status"] == "OK") == (None not in lags)
    samples = {sample.name for metric in exported(seen, ends) for sample in metric.samples}
    assert ("kzconsumer_group_lag_records" in samples) == (None not in lags)


def exported(seen: SeenGroup, ends: Mapping[TopicPartition, int]) -> list[Metric]:
    settings = Settings.from_dict({"zookeeper": {"connect": "zk1:2181/kafka"}, "group": {"id": "unused"}})
    exporter = Exporter(settings, "c", INTERVAL, 60.0)
    down = {sample.name for metric in families(exporter) for sample in metric.samples}
    assert down == {"kzconsumer_exporter_up", "kzconsumer_exporter_complete"}
    fresh = ExporterReading(10.0**12, 0.1, {"g": seen}, {"orders": (0, 1, 2, 3)}, ends, {"closed": "not permitted"})
    exporter.last = fresh
    return list(families(exporter))


def test_when_an_offset_was_stored_is_what_zookeeper_says() -> None:
    """Not when the exporter saw it first. Of an offset that counts for nothing there is no such time."""
    seen = follow((group({}, {}, stored(p0=(5, 7.5), p1=(5, 8.0)) | {"orders/2": node("x")}), {P[0]: 9, P[1]: 5}))
    name = "kzconsumer_group_partition_commit_timestamp_seconds"
    found = {at.labels["partition"]: at.value for of in exported(seen, {}) if of.name == name for at in of.samples}
    assert found == {"0": 7.5, "1": 8.0}


def busy_group() -> tuple[SeenGroup, dict[TopicPartition, int]]:
    """One of which every metric has a sample."""
    member = {"m": ours(orders=2)}
    readings = []
    for number in range(4):
        offsets = stored(p0=(5, -1), p1=(number, INTERVAL * number))
        owners = {"orders/0": node("m-0", 0x11)}
        readings.append((group(member, owners, offsets), {P[0]: 10 + number, P[1]: 6}))
    return follow(*readings, written={(P[0], 5): 2.0, (P[1], 3): 50.0}), {P[0]: 13, P[1]: 6}


def test_rules_and_dashboard_use_existing_metrics_and_the_page_lists_them() -> None:
    seen, ends = busy_group()
    whole = follow(*[(group({}, {}, stored(p0=(5, 0.0))), {P[0]: 9})] * 2, written={(P[0], 5): 1.0})
    known = {sample.name for of in (seen, whole) for metric in exported(of, ends) for sample in metric.samples}
    board = (MONITORING / "exporter-dashboard.json").read_text()
    rules = "".join(re.findall(r"expr: .*", (MONITORING / "exporter-alerts.yml").read_text()))
    used = set(re.findall(r"\bkzconsumer_[a-z_]+", json.dumps(json.loads(board)["panels"]) + rules))
    assert used
    assert used - known == set()
    page = (MONITORING.parent / "docs" / "exporter.md").read_text()
    assert {name for name in known if f"`{name.removeprefix('kzconsumer_')}`" not in page} == set()


#: Metrics that the dashboard leaves out, and why.
LEFT_OUT = {
    "group_partition_commit_timestamp_seconds": "stalled partitions are shown",
    "exporter_read_timestamp_seconds": "exporter_up follows from it",
    "group_lag_records": "group_lag_records_at_least and the unknown partitions are shown",
    "group_lag_seconds": "group_lag_seconds_at_least and the unknown partitions are shown",
    "group_partition_judgement": "the worst one of a group is its status, which is shown",
    "group_partition_lag_seconds": "the group's is shown",
    "group_partition_owner": "partitions without owner are shown",
}


def test_every_metric_is_in_the_dashboard_or_left_out_for_a_reason() -> None:
    board = (MONITORING / "exporter-dashboard.json").read_text()
    reported = {metric.name.removeprefix("kzconsumer_") for metric in exported(*busy_group())}
    shown = {name for name in reported if re.search(rf"kzconsumer_{name}\b", board)}
    assert (shown | LEFT_OUT.keys(), shown & LEFT_OUT.keys()) == (reported, set())


def test_a_deleted_topic_and_retention_are_no_lag() -> None:
    """One offset that is left over, and a log that is empty now: the group is not behind, and the exporter says so."""
    nodes = group({}, {}, stored(p0=(5, 0.0), p1=(0, 0.0)) | {"old/0": node("3")})
    histories = Histories(INTERVAL)
    logs = {P[0]: LogRange(0, 5), P[1]: LogRange(3_008, 3_008)}
    seen = looked(histories, {"g": group_of_nodes(nodes)}, logs, {}, 0.0)["g"]
    sums = seen.total
    assert (sums.lag, sums.lag_seconds, sums.gone, sums.lost) == (0, 0.0, 1, 3_008)
    samples = {(each.name, each.labels["group"]): each.value for of in exported(seen, {}) for each in of.samples[:1]
               if of.name.startswith("kzconsumer_group_") and "topic" not in each.labels}  # fmt: skip
    assert samples["kzconsumer_group_gone_offsets", "g"] == 1
    assert samples["kzconsumer_group_lost_records", "g"] == 3_008
    assert samples["kzconsumer_group_lag_records", "g"] == 0
    assert samples["kzconsumer_group_unreadable", "closed"] == 1
    assert burrow.status("c", "g", seen, whole=True)["totallag"] == 0


def test_the_age_of_what_waits_is_known_while_its_leader_is_away() -> None:
    """By the timestamp that was read before. Of a topic that was deleted meanwhile nothing is kept."""
    histories, here = Histories(INTERVAL), group_of_nodes(group({}, {}, stored(p0=(5, 0.0))))
    written = {(P[0], 7): 0.0}
    looked(histories, {"g": here}, {P[0]: LogRange(7, 9)}, written, 30.0)
    assert histories.age_unknown({"g": here}, {P[0]: Why("no leader")}) == {(P[0], 7)}
    for end, unknown in ((6, {(P[0], 5)}), (5, set()), (4, set())):
        assert histories.age_unknown({"g": here}, {P[0]: LogRange(0, end)}) == unknown, "only of a record that is there"
    seen = looked(histories, {"g": here}, {P[0]: Why("no leader")}, written, 60.0)["g"].total
    assert (seen.lag, seen.at_least, seen.seconds, seen.lost) == (None, 2, 60.0, 2)
    gone = msgspec.structs.replace(here, partitions=(msgspec.structs.replace(here.partitions[0], gone=True),))
    assert looked(histories, {"g": gone}, {}, {}, 90.0)["g"].total.gone == 1
    again = looked(histories, {"g": here}, {P[0]: Why("no leader")}, {}, 120.0)["g"].total
    assert (again.lag, again.at_least, again.lost) == (None, 0, None)


def test_a_wall_clock_that_is_set_back_makes_nothing_present_and_ends_no_stall() -> None:
    histories, here = Histories(INTERVAL), group_of_nodes(group({}, {}, stored(p0=(9, 0.0), p1=(5, 0.0))))
    logs = {P[0]: LogRange(0, 9), P[1]: LogRange(0, 9)}
    looked(histories, {"g": here}, logs, {}, 7200.0, steady=100.0)
    seen = looked(histories, {"g": here}, logs | {P[0]: Why("no leader")}, {}, 3630.0, steady=130.0)["g"]
    assert [(each.lag, each.standing) for each in seen.partitions] == [(None, None), (4, 30.0)]


def test_what_is_left_of_a_deleted_topic_without_an_offset_is_no_partition() -> None:
    """A member of ours removes its offsets, not its claim records."""
    nodes = group({"m": ours(old=1)}, {}, {})
    nodes = msgspec.structs.replace(nodes, claims={GroupPaths("g").claim_record(TopicPartition("old", 0)): node("{}")})
    seen = follow((nodes, {}))
    assert (seen.partitions, seen.total.lag) == ((), 0)
    unreadable = group({}, {}, {"old/0": node("x")})
    assert follow((unreadable, {})).total.gone == 1


def test_a_group_that_has_committed_nothing_is_not_ok() -> None:
    """Two of three partitions have no owner, and nothing was ever stored."""
    nodes = group({"m": ours(orders=2)}, {"orders/0": node("m-0", 0x11)}, {})
    seen = follow(*[(nodes, dict.fromkeys(P, 10))] * 2)
    assert (seen.total.lag, seen.total.unknown) == (None, {"never committed": 4})
    assert burrow.group_status(seen) == "WARN"
    assert burrow.status("c", "g", seen, whole=True)["totallag"] is None
    assert burrow.group_status(follow((nodes, dict.fromkeys(P, 10)))) == "UNKNOWN", "perhaps a rebalance"
    assert follow((nodes, dict.fromkeys(P, 0))).total.lag == 0, "of empty logs nothing is left to read"


def test_documents_have_the_fields_of_burrow() -> None:
    """Names and types as in `core/protocol` of Burrow 1.9."""
    seen, ends = busy_group()
    status: dict[str, Any] = json.loads(msgspec.json.encode(burrow.status("c", "g", seen, whole=False)))
    offset = {"offset": int, "timestamp": int, "observedAt": int, "lag": int}
    of_group = {"cluster": str, "group": str, "status": str, "complete": float, "partitions": list}
    of_group |= {"partition_count": int, "maxlag": dict, "totallag": int}
    of_partition = {"topic": str, "partition": int, "owner": str, "client_id": str, "status": str}
    of_partition |= {"start": dict, "end": dict, "current_lag": int, "complete": float}
    assert {key: type(value) for key, value in status.items()} == of_group
    assert {key: type(value) for key, value in status["maxlag"].items()} == of_partition
    assert {key: type(value) for key, value in status["maxlag"]["end"].items()} == offset
    assert seen.total.seconds == 88.0, "of the older one"
    assert status["partitions"] == [], "only those that are not OK"
    assert (status["maxlag"]["owner"], status["maxlag"]["current_lag"], status["totallag"]) == ("m-0", 8, 11)
    topics = burrow.consumer(seen)
    assert set(topics) == {"orders"}
    odd = msgspec.structs.replace(seen.partitions[0], partition=MOST_PARTITIONS)
    assert burrow.consumer(msgspec.structs.replace(seen, partitions=(odd, *seen.partitions))) == topics
    first, second = topics["orders"]
    assert first is not None
    assert second is not None
    assert (first["offsets"][:-1], len(second["offsets"])) == ([None] * (WINDOW - 1), WINDOW)
    assert set(first) == {"offsets", "owner", "client_id", "current-lag"}
    missing = burrow.status("c", "other", None, whole=True)
    assert (missing["status"], missing["partitions"], missing["maxlag"]) == ("NOTFOUND", [], None)
    assert burrow.topic_offsets(ends, "orders", (0, 1, 2)) == [13, 6, None]
    assert burrow.consumers_of({"g": seen}, "orders") == ["g"]


GROUPS, PARTITIONS = 4, 500


def shown_by_top(seen: SeenGroup) -> dict[str, Any]:
    """The status that `top --of` shows of it."""
    reading = ExporterReading(0.0, 0.1, {"g": seen}, {}, {P[0]: 9})
    status: dict[str, Any] = group_feed.documents(seen, reading, {P[0]: 2.5})["status"]
    return status


def test_what_top_shows_of_a_group_with_any_members() -> None:
    """Its findings are those of the reading, a kind each; what could not be asked makes it not examined."""
    member, owner = {"m": ours(orders=1)}, {f"orders/{n}": node("m-0", 0x11) for n in range(4)}
    behind, ends = stored(p0=(5, 0.0), p1=(9, 0.0)), dict.fromkeys(P, 9)
    done = stored(**{f"p{n}": (9, 0.0) for n in range(4)})

    def found(nodes: GroupNodes, known: Mapping[TopicPartition, int], readings: int = 2) -> tuple[object, ...]:
        status = shown_by_top(follow(*[(nodes, known)] * readings, written={(P[0], 5): 0.0}))
        assert (status["group"], status["rate"]) == ("g", 2.5)
        return status["health"], [each["id"] for each in status["findings"]], status["lag_text"]

    assert found(group(member, owner, done), ends) == ("healthy", [], "0")
    assert found(group({}, {}, behind), ends) == ("unhealthy", ["no_members"], "4")
    assert found(group({}, {}, behind), ends, 30) == ("unhealthy", ["no_members"], "4"), "not also stalled"
    assert found(group(member, owner, done | behind), ends, 30) == ("unhealthy", ["stalled"], "4")
    assert found(group(member, {}, done), ends) == ("unhealthy", ["unowned"], "0")
    assert found(group(member, {}, done), ends, 1) == ("healthy", [], "0"), "perhaps a rebalance"
    assert found(group({}, {}, stored(p0=(9, 0.0)) | {"old/0": node("3")}), ends) == ("unhealthy", ["topic_gone"], "0")
    assert found(group(member, owner, {}), ends) == ("not examined", [], "unknown (never committed)")
    histories, here = Histories(INTERVAL), group_of_nodes(group({}, {}, stored(p0=(9, 0.0))))
    leaderless = looked(histories, {"g": here}, {P[0]: Why("no leader")}, {}, 0.0)["g"]
    assert [each["id"] for each in shown_by_top(leaderless)["findings"]] == ["no_leader"]
    lost = looked(histories, {"g": here}, {P[0]: LogRange(12, 12)}, {}, 1.0)["g"]
    assert [each["id"] for each in shown_by_top(lost)["findings"]] == ["offsets_lost"]
    beyond = looked(histories, {"g": here}, {P[0]: LogRange(0, 8)}, {}, 2.0)["g"]
    assert [each["id"] for each in shown_by_top(beyond)["findings"]] == ["offsets_after_log"]
    assert shown_by_top(beyond)["not_asked"] == []
    unreadable = group({}, {}, {"orders/0": node("x")})
    assert found(unreadable, ends) == ("unhealthy", ["not_readable"], "unknown (offset unreadable)")
    recreated = msgspec.structs.replace(node("9"), stat=msgspec.structs.replace(node("").stat, mzxid=0))
    assert found(group({}, {}, {"orders/0": recreated}), ends) == (
        "unhealthy",
        ["topic_recreated"],
        "unknown (offset of an earlier topic)",
    )
    storm = msgspec.structs.replace(group({}, {}, {}), foreign=("partition_0",))
    assert found(storm, ends) == ("not examined", [], "unknown (kept by another client)")
    assert burrow.status("c", "g", follow((storm, ends)), whole=True)["totallag"] is None
    assert burrow.group_status(follow((storm, ends))) == "UNKNOWN"


async def test_a_scrape_does_not_keep_the_session_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding the metrics of ten thousand groups takes seconds: the loop, and its heartbeats, go on meanwhile."""
    settings = Settings.from_dict({"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "unused"}})
    begun, beat = threading.Event(), threading.Event()
    ended = []

    def collect(_: Exporter) -> list[Metric]:
        begun.set()
        ended.append(beat.wait(10))
        return []

    monkeypatch.setattr("kzconsumer_tools.exporter.exporter_server.families", collect)
    monkeypatch.setattr(Exporter, "run", lambda _: anyio.sleep_forever())
    listen = f"127.0.0.1:{free_port()}"
    exporter = Exporter(settings, "c", INTERVAL, 60.0)

    async def heartbeat() -> None:
        await until(begun.is_set)
        beat.set()

    async with (
        serving(exporter, listen),
        ClientSession() as http,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(heartbeat)
        async with http.get(f"http://{listen}/metrics") as answer:
            assert answer.status == 200
    assert ended == [True]


@pytest.mark.parametrize("set_back", [True, False], ids=["the clock is set back", "the machine was suspended"])
async def test_an_old_reading_is_not_shown(monkeypatch: pytest.MonkeyPatch, set_back: bool) -> None:
    settings = Settings.from_dict({"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "unused"}})
    exporter = Exporter(settings, "c", INTERVAL, 60.0)
    await exporter.take_reading({}, [], {}, 0.1, (), {})
    assert exporter.present is not None
    wall, since = time.time(), now()
    monkeypatch.setattr(time, "time", lambda: wall + (-3600.0 if set_back else 3600.0))
    monkeypatch.setattr(exporter_module, "now", lambda: since + (3600.0 if set_back else 1.0))
    assert exporter.present is None


ODD = ["a b", "ä/ö", "100%", "%41", 'q"uo\\te', "{x}", "?x#y", "a+b", "new\nline", "🦆"]


async def test_groups_with_odd_names_have_metrics_and_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper allows all but a slash and control characters, brokers everything."""
    seen, ends = busy_group()
    settings = Settings.from_dict({"zookeeper": {"connect": "zk1:2181"}, "group": {"id": "unused"}})
    exporter = Exporter(settings, "c", INTERVAL, 60.0)
    groups = {name: msgspec.structs.replace(seen, group=name) for name in ODD}
    await exporter.take_reading({}, [*ends], {}, 0.1, (), {})
    assert exporter.last is not None
    exporter.last = msgspec.structs.replace(exporter.last, at=10.0**12, groups=groups, ends=ends)
    monkeypatch.setattr(Exporter, "run", lambda _: anyio.sleep_forever())
    listen = f"127.0.0.1:{free_port()}"
    async with serving(exporter, listen), ClientSession() as http:
        root = f"http://{listen}"

        async def get(path: str) -> Any:
            async with http.get(URL(root + path, encoded=True)) as answer:
                return await answer.json()

        assert (await get("/v3/kafka/c/consumer"))["consumers"] == sorted(ODD)
        assert (await get("/v3/kafka/c/topic"))["topics"] == ["orders"]
        assert (await get("/v3/kafka/c/topic/orders"))["offsets"] == [ends[each] for each in sorted(ends)]
        for name in ODD:
            answer = await get(f"/v3/kafka/c/consumer/{quote(name, safe='')}/lag")
            assert (answer["status"]["group"], answer["status"]["totallag"]) == (name, 11)
        async with http.get(f"{root}/metrics") as answer:
            text = await answer.text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    lags = families["kzconsumer_group_lag_records_at_least"].samples
    assert {sample.labels["group"]: sample.value for sample in lags} == dict.fromkeys(ODD, 11)
