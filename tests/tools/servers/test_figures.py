"""The figures of every view, in odd states, compared with what foreign clients read: aiozk's own client and librdkafka.

One table is made for each version, with a row for each state and view; `KZCONSUMER_TABLE=DIR` keeps it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import aiozk
import anyio
import pytest
from aiozk.protocol import ExistsRequest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_tools.commands.output_and_options import EXIT_OF
from kzconsumer_tools.exporter.burrow import status
from kzconsumer_tools.exporter.exporter import Exporter, ExporterReading
from kzconsumer_tools.exporter.group_feed import documents
from tests.support.command_line import CommandLine, Done
from tests.support.extent import NIGHTLY, extent
from tests.support.producing import Sent, produce
from tests.support.recreation import recreate_topic
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import make_chroot, session, until

pytestmark = pytest.mark.timeout(400)

VERSIONS = extent(("3.9.1",), ("0.8.2.2", "1.1.1", "3.9.1", "4.2.0"))
AUTHORIZERS = {
    "1.1.1": "kafka.security.auth.SimpleAclAuthorizer",
    "3.9.1": "kafka.security.authorizer.AclAuthorizer",
    "4.2.0": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
RECORDS = 10


class State(NamedTuple):
    """`offsets`: topic and partition -> the content of the node; `health`: that of `describe`. `full`, `empty` and
    `leaderless` are topics of two partitions, `gone` is none."""

    offsets: Mapping[str, bytes] = MappingProxyType({})
    ids: Mapping[str, bytes] = MappingProxyType({})
    owners: Mapping[str, bytes] = MappingProxyType({})
    other: tuple[str, ...] = ()
    health: str = "healthy"


STATIC = b'{"version":1,"subscription":{"TOPIC":1},"pattern":"static","timestamp":"1"}'
LIST = b'{"version":1,"subscription":{"EXPRESSION":1},"pattern":"white_list","timestamp":"1"}'
BOTH = {"full/0": b"m-0", "full/1": b"m-0"}
EMPTY = {"empty/0": b"m-0", "empty/1": b"m-0"}
DONE = {"full/0": b"10", "full/1": b"10"}

STATES = {
    "caught up, members": State(DONE, {"m": STATIC}, BOTH),
    "caught up, no members": State(DONE),
    "behind, no members": State({"full/0": b"3", "full/1": b"10"}, health="unhealthy"),
    "behind, members": State({"full/0": b"3", "full/1": b"0"}, {"m": STATIC}, BOTH),
    "never committed": State({}, {"m": STATIC}, BOTH),
    "never committed, empty logs": State({}, {"m": STATIC.replace(b"TOPIC", b"EMPTY")}, EMPTY),
    "one of two committed": State({"full/0": b"4"}, {"m": STATIC}, BOTH),
    "minus one": State({"full/0": b"-1"}),
    "no number": State({"full/0": b"x", "full/1": b"9"}, health="unhealthy"),
    "no content": State({"full/0": b""}, health="unhealthy"),
    "leading zeros": State({"full/0": b"007"}, health="unhealthy"),
    "white space": State({"full/0": b" 7\n"}, health="unhealthy"),
    "beyond the end": State({"full/0": b"11"}, health="unhealthy"),
    "the largest number": State({"full/0": b"%d" % (2**63 - 1)}, health="unhealthy"),
    "larger than any": State({"full/0": b"%d" % 2**63}, health="unhealthy"),
    "an empty log": State({"empty/0": b"0"}),
    "beyond an empty log": State({"empty/0": b"4"}, health="unhealthy"),
    "a deleted topic": State({"gone/0": b"4", "full/0": b"10"}, health="unhealthy"),
    "a partition too many": State({"full/7": b"4", "full/0": b"10"}, health="unhealthy"),
    "a leaderless partition": State({"leaderless/0": b"0", "full/0": b"10"}, health="unhealthy"),
    "nodes of 0.7": State({"full/0-1": b"4", "full/0": b"10"}, health="unhealthy"),
    "registered, owns nothing": State(DONE, {"m": STATIC}, health="unhealthy"),
    "owner without registration": State(DONE, {"m": STATIC}, {"full/0": b"z-0", "full/1": b"m-0"}, health="unhealthy"),
    "owner of one session, member of none": State(DONE, {}, {"full/0": b"z-0"}, health="unhealthy"),
    "owner nodes with the member's id": State(DONE, {"h:6f1c-b2": STATIC}, dict.fromkeys(BOTH, b"h:6f1c-b2")),
    "unreadable registration": State(DONE, {"m": b"{"}, health="unhealthy"),
    "unusable pattern": State(DONE, {"m": LIST.replace(b"EXPRESSION", b"(")}, health="unhealthy"),
    "a pattern that backtracks": State(DONE, {"m": LIST.replace(b"EXPRESSION", b"(a+)+(f|u|l)+")}),
    "a Storm spout": State(other=("partition_0", "partition_1"), health="not examined"),
    "nothing but its name": State(),
}  # fmt: skip
OF_0_11 = {
    "before the start": State({"trimmed/0": b"2", "trimmed/1": b"8"}, health="unhealthy"),
    "before the start, all deleted": State({"swept/0": b"2", "swept/1": b"10"}, health="unhealthy"),
    "never committed, all deleted": State({"swept/0": b"-1", "swept/1": b"-1"}),
    "an open transaction": State({"open/0": b"0"}, health="unhealthy"),
    "a topic created again": State({"again/0": b"4", "again/1": b"10"}, health="unhealthy"),
}
"""Brokers from 0.11 delete records on request, and have transactions. `again` was deleted after they were stored."""
WITH_ACL = {
    "a topic that may not be described": State({"closed/0": b"4", "full/0": b"10"}, health="not examined"),
    "the same, with members": State(
        {"closed/0": b"4"}, {"m": STATIC.replace(b"TOPIC", b"CLOSED")}, {"closed/0": b"m-0", "closed/1": b"m-0"},
        health="not examined",
    ),
}  # fmt: skip
"""By night alone: for them a broker has an authorizer."""


class Truth(NamedTuple):
    """What follows from the foreign readings. `lag`: None if that of one partition is unknown."""

    lag: int | None
    at_least: int
    unknown: int
    gone: int


async def foreign(cluster: Cluster, groups: list[str]) -> dict[str, Truth]:
    """In KRaft mode the brokers say which topics there are."""
    client = aiozk.ZKClient(cluster.connect.partition("/")[0], chroot=f"/{cluster.connect.partition('/')[2]}")
    await client.start()
    about: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "group.id": "foreign"}
    about["isolation.level"] = "read_uncommitted"
    if cluster.version.startswith("0.8"):
        about |= {"api.version.request": False, "broker.version.fallback": "0.8.2"}
    consumer = Consumer(about)
    marks: dict[tuple[str, int], tuple[int, int] | None] = {}

    def watermarks(topic: str, number: int) -> tuple[int, int] | None:
        if (topic, number) not in marks:
            try:
                marks[topic, number] = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=4)
            except Exception:
                marks[topic, number] = None
        return marks[topic, number]

    async def children(path: str) -> list[str]:
        try:
            return list(await client.get_children(path))
        except aiozk.exc.NoNode:
            return []

    async def stat(path: str) -> Any:
        return (await client.send(ExistsRequest(path=client.normalize_path(path), watch=False))).stat

    try:
        there = {topic: range(2) for topic in await children("/brokers/topics")}
        if cluster.kraft:
            listed = (await anyio.to_thread.run_sync(lambda: consumer.list_topics(timeout=10))).topics
            there = {topic: range(len(about.partitions)) for topic, about in listed.items()}
        found = {}
        for group in groups:
            rows: dict[tuple[str, int], bytes | None] = {}
            for topic in await children(f"/consumers/{group}/offsets"):
                for name in await children(f"/consumers/{group}/offsets/{topic}"):
                    if name.isdecimal():
                        path = f"/consumers/{group}/offsets/{topic}/{name}"
                        rows[topic, int(name)] = await client.get_data(path)
                        if not cluster.kraft and topic in there:  # stored before its topic was created: of no use
                            stored, created = await stat(path), await stat(f"/brokers/topics/{topic}")
                            if stored.last_modified_zxid < created.created_zxid:
                                rows[topic, int(name)] = b""
                for number in there.get(topic, ()):  # also what was never read: members read whole topics
                    rows.setdefault((topic, number), None)
            for member in await children(f"/consumers/{group}/ids"):
                data = await client.get_data(f"/consumers/{group}/ids/{member}")
                for topic in there if b"static" in data else ():
                    for number in there[topic] if b'"%s"' % topic.encode() in data else ():
                        rows.setdefault((topic, number), None)
            for topic in await children(f"/consumers/{group}/owners"):
                if cluster.kraft and topic not in there and is_hidden(consumer, topic):
                    for name in await children(f"/consumers/{group}/owners/{topic}"):
                        rows.setdefault((topic, int(name)), None)
            elsewhere = 0 if rows else sum("partition_" in name for name in await children(f"/consumers/{group}"))
            hidden = {topic for topic, _ in rows if cluster.kraft and topic not in there and is_hidden(consumer, topic)}
            found[group] = await anyio.to_thread.run_sync(truth, rows, there, watermarks, hidden, elsewhere)
        return found
    finally:
        consumer.close()
        await client.close()


def is_hidden(consumer: Consumer, topic: str) -> bool:
    error = consumer.list_topics(topic, timeout=10).topics[topic].error
    return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def truth(
    rows: dict[tuple[str, int], bytes | None],
    there: dict[str, range],
    watermarks: Callable[[str, int], tuple[int, int] | None],
    hidden: Collection[str],
    elsewhere: int,
) -> Truth:
    """`elsewhere`: number of a Storm spout's nodes."""
    lags: list[int | None] = [None] * elsewhere
    gone = 0
    for (topic, number), data in rows.items():
        if topic in hidden:
            lags.append(None)
            continue
        if number not in there.get(topic, ()):
            gone += 1
            continue
        log = watermarks(topic, number)
        text = (data or b"-1").strip() if data != b"" else b"unreadable"
        if log is None:
            lags.append(None)
        elif text == b"-1":
            lags.append(0 if log[0] == log[1] else None)
        elif not text.isdigit() or not int(text) <= log[1]:
            lags.append(None)
        else:
            lags.append(log[1] - max(log[0], int(text)))
    known = [lag for lag in lags if lag is not None]
    nothing = not lags and not gone  # no offset, no member: what is left to read is not known
    return Truth(None if None in lags or nothing else sum(known), sum(known), lags.count(None), gone)


async def make(
    zookeeper: ZooKeeperSession, group: str, state: State, names: dict[str, str], *, kraft: bool = False
) -> None:
    def named(leaf: str) -> str:
        topic, _, number = leaf.partition("/")
        return f"{names[topic]}/{number}"

    root = f"/consumers/{group}"
    await zookeeper.ensure(root)
    for leaf, data in state.offsets.items():
        await zookeeper.ensure(f"{root}/offsets/{named(leaf)}")
        await zookeeper.set(f"{root}/offsets/{named(leaf)}", data, -1)
    for name in state.other:
        await zookeeper.ensure(f"{root}/{name}")
    for kind, nodes in (("ids", state.ids), ("owners", {named(leaf): owner for leaf, owner in state.owners.items()})):
        for name, data in nodes.items():
            path = f"{root}/{kind}/{name}"
            await zookeeper.ensure(path.rpartition("/")[0])
            for word, topic in ((b"TOPIC", "full"), (b"EMPTY", "empty"), (b"CLOSED", "closed")):
                data = data.replace(word, names.get(topic, "").encode())
            if kraft:  # an original member would be a finding
                data = data.replace(b'"timestamp"', b'"kzconsumer":"1","timestamp"')
            await zookeeper.create(path, data, ephemeral=True)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_view_shows_what_foreign_clients_read(
    servers: Servers,
    version: str,
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At night with a topic that an ACL hides, and again without a broker."""
    alone = NIGHTLY is not None
    kraft = version.startswith("4")
    cluster = own_cluster(servers, unique, version) if alone else servers.cluster_of(version)
    names = {kind: f"{unique}-{kind}" for kind in ("full", "empty", "gone", "leaderless")}
    for kind in ("full", "empty"):
        await topic_of_two(cluster, names[kind])
    records = [Sent(n % 2, None, b"x") for n in range(2 * RECORDS)]
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, names["full"], records)
    states, open_ended = STATES, None
    if version != "0.8.2.2":
        states = {**STATES, **OF_0_11, **(WITH_ACL if alone else {})}
        if kraft:  # whose offsets are older than the topic is known to groups of members of ours
            states.pop("a topic created again")
        for kind, before in (("trimmed", 6), ("swept", RECORDS), ("open", 0), ("again", 0), ("closed", 0)):
            names[kind] = f"{unique}-{kind}"
            await topic_of_two(cluster, names[kind])
            await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, names[kind], records)
            await anyio.to_thread.run_sync(delete_before, cluster.bootstrap, names[kind], before)
        open_ended = await anyio.to_thread.run_sync(begin, cluster.bootstrap, names["open"])
        if alone:
            await anyio.to_thread.run_sync(hide, cluster.bootstrap, names["closed"])
    groups = {f"{unique}-{number}": state for number, state in enumerate(states.values())}
    rows: list[tuple[str, str, object, object]] = []
    await make_chroot(cluster.connect)
    async with session(cluster.connect) as zookeeper:
        if kraft:
            await topic_of_two(cluster, names["leaderless"], broker=2)
            await anyio.to_thread.run_sync(cluster.brokers[2].kill)
            await anyio.to_thread.run_sync(wait_leaderless, cluster.bootstrap, names["leaderless"])
        else:
            nobody = b'{"version":1,"partitions":{"0":[4711],"1":[4711]}}'
            await zookeeper.create(f"/brokers/topics/{names['leaderless']}", nobody)
        of_earlier = [
            group for group, state in groups.items() if any(leaf.startswith("again/") for leaf in state.offsets)
        ]
        for group in of_earlier:
            await make(zookeeper, group, groups[group], names)
            await recreate_topic(cluster, names["again"], 2)
            await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, names["again"], records)
        for group, state in groups.items():
            if group not in of_earlier:
                await make(zookeeper, group, state, names, kraft=kraft)
        kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect, *options(cluster))
        rows += await compared(cluster, kzconsumer, dict(zip(states, groups, strict=True)), unique, monkeypatch)
        seen: set[str] = set()
        for name, (group, state) in zip(states, groups.items(), strict=True):
            described = json.loads((await answered(kzconsumer, "groups", "describe", group)).out)
            rows.append((name, "describe", described["health"], state.health))
            if not alone and described["health"] in seen:  # by night each
                continue
            seen.add(described["health"])
            shown = (await kzconsumer("groups", "describe", group)).out.splitlines()[-1]
            said = {"Healthy": "healthy", "Not healthy": "unhealthy", "Not examined": "not examined"}
            rows.append((name, "describe as text", said[shown.partition(":")[0]], described["health"]))
        if "closed" in names and alone:
            done = await kzconsumer("offsets", "reset", next(iter(groups)), "--topic", names["closed"], "--to-earliest")
            refused = "an ACL of the brokers hides it" in done.err or "TOPIC_AUTHORIZATION_FAILED" in done.err
            rows.append(("a topic that may not be described", "offsets reset", (done.status, refused), (1, True)))
        if kraft:  # what there is only brokers know
            await anyio.to_thread.run_sync(cluster.kill)
            for words in (("lag",), ("groups", "describe"), ("groups", "doctor")):
                done = await kzconsumer(*words, next(iter(groups)))
                rows.append(
                    ("no broker", " ".join(words), (done.status, "no broker" in done.err, done.out), (1, True, ""))
                )
        elif alone:
            await anyio.to_thread.run_sync(cluster.kill)
            while await zookeeper.children("/brokers/ids"):
                await anyio.sleep(0.2)
            of_groups = {f"{name}, no broker": group for name, group in zip(states, groups, strict=True)}
            without = await compared(cluster, kzconsumer, of_groups, unique, monkeypatch, brokers=False)
            assert {true.unknown for _, view, _, true in without if view == "lag" and isinstance(true, Truth)} >= {1, 2}
            rows += without
            (fine,) = (group for name, group in of_groups.items() if name == "caught up, members, no broker")
            for words, exit_status in ((("groups", "doctor"), 4), (("groups", "describe"), 0)):
                found = await kzconsumer.json(*words, fine, status=exit_status)
                rows.append(("caught up, members, no broker", " ".join(words), found["health"], "not examined"))
        if not kraft:
            await zookeeper.delete(f"/brokers/topics/{names['leaderless']}", -1)
        if open_ended is not None and not alone:
            await anyio.to_thread.run_sync(open_ended.abort_transaction)
    lines = [f"{'=' if found == true else '!'} {name}: {view}: {found} {true}" for name, view, found, true in rows]
    Path(os.environ.get("KZCONSUMER_TABLE") or tmp_path, f"figures-{version}").write_text("\n".join(lines))
    assert len(STATES) >= 25
    assert len({true for _, _, _, true in rows}) > 8, "the states differ"
    assert [line for line in lines if line.startswith("!")] == []


async def compared(
    cluster: Cluster,
    kzconsumer: CommandLine,
    groups: dict[str, str],
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    brokers: bool = True,
) -> list[tuple[str, str, object, object]]:
    """State, view, its figures, and those of the foreign clients. `groups`: by the name of their state;
    `brokers`: whether they answer."""
    expected = await foreign(cluster, list(groups.values()))
    listed = {each["group"]: each for each in await kzconsumer.json("groups", "list", "--include", f"{unique}-.*")}
    reading = await exported(cluster, unique, monkeypatch)
    rows: list[tuple[str, str, object, object]] = []
    for name, group in groups.items():
        true, lag, of_list = expected[group], await found_by_lag(kzconsumer, group), listed[group]
        of_exporter = reading.groups[group].total
        views = {
            "lag": Truth(lag["lag"], lag["lag_at_least"], sum(lag["unknown"].values()), lag["gone"]),
            "groups list": Truth(
                of_list["lag"], of_list["lag_at_least"], sum(of_list["unknown"].values()), of_list["gone"]
            ),
            "exporter": Truth(
                reading.groups[group].lag, of_exporter.at_least, sum(of_exporter.unknown.values()), of_exporter.gone
            ),
        }
        rows += [(name, view, figure, true) for view, figure in views.items()]
        total = status("c", group, reading.groups[group], whole=True)["totallag"]
        rows.append((name, "Burrow", total if true.unknown == 0 else None, true.lag))
        top = documents(reading.groups[group], reading, {})["status"]
        rows.append((name, "top", (top["total"]["at_least"], sum(top["total"]["unknown"].values())), true[1:3]))
        # An unknown figure is not healthy, unless it waits for a first commit.
        known = not lag["unknown"].keys() - {"never committed"} and not of_list["foreign"]
        known = known and (brokers or all(each["gone"] for each in lag["partitions"]))
        rows.append((name, "health of lag", lag["health"] == "healthy", known))
        rows.append((name, "health of top", top["health"] == "healthy" and not known, False))
    return rows


def own_cluster(servers: Servers, name: str, version: str) -> Cluster:
    """With an authorizer, by which everybody may do everything so far. In KRaft mode broker 2 leads what it is to."""
    config: dict[str, object] = {}
    if version in AUTHORIZERS:
        config = {"authorizer.class.name": AUTHORIZERS[version], "allow.everyone.if.no.acl.found": "true"}
    kraft = version.startswith("4")
    return servers.cluster(name, version, brokers=1 + kraft, config=config, kraft=kraft)


def options(cluster: Cluster) -> tuple[str, ...]:
    return ("--bootstrap", cluster.bootstrap) if cluster.kraft else ()


async def topic_of_two(cluster: Cluster, topic: str, broker: int = 1) -> None:
    """A topic of two partitions."""
    if not cluster.kraft:
        await create_topic(cluster.connect, topic, 2)
        return
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (created,) = admin.create_topics([NewTopic(topic, 2, replica_assignment=[[broker], [broker]])]).values()
    await anyio.to_thread.run_sync(created.result, 30)


def hide(bootstrap: str, topic: str) -> None:
    """From everybody, and wait until that holds."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    where = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL
    denied = AclBinding(*where, "User:ANONYMOUS", "*", AclOperation.ALL, AclPermissionType.DENY)
    for created in admin.create_acls([denied]).values():
        created.result(30)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "foreign"})
    deadline = time.monotonic() + 30
    while not is_hidden(consumer, topic):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    consumer.close()


def wait_leaderless(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + 60
    while any(each.leader >= 0 for each in admin.list_topics(topic, timeout=10).topics[topic].partitions.values()):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, number, offset) for number in range(2)]).values():
        deleted.result(30)


def begin(bootstrap: str, topic: str) -> Producer:
    """A transaction of three records, which stays open."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    return producer


async def answered(kzconsumer: CommandLine, *words: str) -> Done:
    """Asked again if a broker that is up has not answered in time, as it may not on a loaded machine: what it was asked
    for is unknown then.
    """
    for _ in range(3):
        done = await kzconsumer(*words, "-o", "json")
        if not re.search(r"no answer (to \w+ )?within|not connected within", done.out):
            break
    assert done.out, done
    return done


async def found_by_lag(kzconsumer: CommandLine, group: str) -> Any:
    done = await answered(kzconsumer, "lag", group)
    found = json.loads(done.out)
    assert done.status == EXIT_OF[found["health"]], done
    return found


async def exported(cluster: Cluster, unique: str, monkeypatch: pytest.MonkeyPatch) -> ExporterReading:
    tables: dict[str, dict[str, object]] = {"zookeeper": {"connect": cluster.connect}, "group": {"id": "unused"}}
    if cluster.kraft:
        tables["brokers"] = {"bootstrap": cluster.bootstrap.split(",")}
    settings = Settings.from_dict(tables)
    exporter = Exporter(settings, "c", 1.0, 60.0, wanted=lambda name: name.startswith(f"{unique}-"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exporter.run)
        await until(lambda: exporter.present is not None, 60)
        reading = exporter.present
        tasks.cancel_scope.cancel()
    assert reading is not None
    return reading
