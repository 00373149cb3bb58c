"""`kzconsumer groups move`: a group in ZooKeeper becomes one of Kafka's own consumers, and returns.

Kafka's side is librdkafka. Every record has a value of its own, so that a lost or repeated one is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from kzconsumer.registry.claim_record import ClaimRecord, encode_claim_record
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.servers.test_offset_storage import DUAL, KAFKA, consume, fill
from tests.core.servers.test_zookeeper_security import written
from tests.support.command_line import CommandLine
from tests.support.consuming import member, stored_offset, take
from tests.support.extent import extent, only_nightly
from tests.support.kafka_consumer import java_member, kafka_member, read_to_the_end
from tests.support.kafka_offsets import kafka_offset, move_kafka_offset
from tests.support.plans import plan_of
from tests.support.producing import Sent, produce
from tests.support.secured import Secured
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

ZOOKEEPER = {"storage": "zookeeper"}
RECORDS, PARTITIONS = 30, 3
WITH_GROUPS = extent(("3.9.1",), ("0.10.2.2", "1.1.1", "2.8.2", "3.9.1"))
STORING = extent(("0.8.2.2",), ("0.8.2.2", "0.9.0.1", *WITH_GROUPS))
ALL = sorted(b"%d" % number for number in range(RECORDS))
theirs = partial(read_to_the_end, partitions=PARTITIONS)


class Moving:
    """`kzconsumer groups move` for a group and a topic of the same name; each execution writes an undo file."""

    def __init__(self, kzconsumer: CommandLine, group: str, folder: Path) -> None:
        self.kzconsumer, self.group, self.folder = kzconsumer, group, folder
        self.undo = folder / "no-undo"

    async def __call__(self, *words: str, status: int = 0) -> Any:
        return await self.kzconsumer.json("groups", "move", self.group, *words, status=status)

    async def execute(self, *words: str) -> Any:
        self.undo = self.folder / f"undo-{len(list(self.folder.iterdir()))}"
        done = await self(*words, "--execute", "--undo", str(self.undo))
        assert (done["executed"], done["undo"]) == (True, str(self.undo)), done
        return done

    async def refused(self, *words: str) -> str:
        """The error of an execution; nothing was written."""
        undo = self.folder / "refused"
        answer = await self.kzconsumer("groups", "move", self.group, *words, "--execute", "--undo", str(undo))
        assert (answer.status, answer.out, undo.exists()) == (1, "", False), answer
        assert answer.err.count("\n") == 1, answer
        return answer.err

    async def take_back(self) -> None:
        done = await self.kzconsumer("offsets", "import", str(self.undo), "--execute", "--undo", f"{self.undo}-undo")
        assert done.status == 0, done


@pytest.fixture
def moving(cluster: Cluster, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Moving:
    return Moving(CommandLine(capsys, "--zookeeper", cluster.connect), unique, tmp_path)


async def ours(cluster: Cluster, name: str, count: int) -> list[bytes]:
    """A member in ZooKeeper takes so many records, and leaves."""
    async with member(cluster, name, {name: 1}) as (_, streams):
        taken = await take(streams[name][0], count)
        streams[name][0].ack()
    return [bytes(message.value or b"") for message in taken]


async def put(cluster: Cluster, nodes: Mapping[str, bytes]) -> None:
    """Nodes below /consumers."""
    async with session(cluster.connect) as zookeeper:
        for path, data in nodes.items():
            await zookeeper.ensure(f"/consumers/{path}")
            await zookeeper.set(f"/consumers/{path}", data, -1)


@pytest.mark.parametrize("version", WITH_GROUPS)
async def test_each_side_continues_at_the_next_record(
    cluster_of: Callable[[str], Cluster],
    unique: str,
    version: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ours, Kafka's own consumer, ours again: together they have every record once."""
    cluster = cluster_of(version)
    name = unique.replace(".", "-")
    new = f"{name}-new"
    moving = Moving(CommandLine(capsys, "--zookeeper", cluster.connect), name, tmp_path)
    await fill(cluster, name, RECORDS, PARTITIONS)
    first = await ours(cluster, name, 17)

    # Without the move the group knows nothing, and begins by its reset policy: an error, or all records again.
    with pytest.raises(KafkaException):
        await theirs(cluster, f"{name}-control", name)
    assert sorted([*first, *await theirs(cluster, f"{name}-control", name, "earliest")]) == sorted([*first, *ALL])

    plan = await moving("--to-kafka", new)
    assert [(each["kafka"], each["changes"]) for each in plan["partitions"]] == [(None, True)] * PARTITIONS
    assert [each["stored"] for each in plan["partitions"]] == [each["new"] for each in plan["partitions"]]
    assert (plan["executed"], plan["blocked"], plan["same"]) == (False, [], False)
    assert await kafka_offset(cluster, new, name) is None
    await moving("--to-kafka", new, "--verify", status=3)
    await moving.execute("--to-kafka", new)
    await moving("--to-kafka", new, "--verify")
    assert (await moving("--to-kafka", new, "--execute"))["executed"] is False
    second = await theirs(cluster, new, name)
    assert len(second) == RECORDS - 17
    assert sorted([*first, *second]) == ALL
    await moving("--to-kafka", new, "--verify", status=3)

    done = await moving.execute("--from-kafka", new)
    assert sum(each["skipped"] for each in done["partitions"]) == RECORDS - 17
    await moving("--from-kafka", new, "--verify")
    more = [Sent(number % PARTITIONS, None, b"more %d" % number) for number in range(6)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, name, more)
    assert sorted(await ours(cluster, name, 6)) == sorted(each.value for each in more if each.value)


@only_nightly
async def test_a_group_moves_to_the_first_consumers_that_brokers_coordinate_and_back(
    servers: Servers,
    cluster_of: Callable[[str], Cluster],
    unique: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """0.9 cannot say which requests it knows, and reads a group's offsets only by partition."""
    cluster, new = cluster_of("0.9.0.1"), f"{unique}-new"
    moving = Moving(CommandLine(capsys, "--zookeeper", cluster.connect), unique, tmp_path)
    await fill(cluster, unique, RECORDS, PARTITIONS)
    first = await ours(cluster, unique, 17)
    await moving.execute("--to-kafka", new)
    await moving("--to-kafka", new, "--verify")
    with java_member(servers, cluster, new, unique, tmp_path / "java") as consumer:
        assert sorted([*first, *await consumer.reached(RECORDS - 17)]) == ALL
        for way in ("--to-kafka", "--from-kafka"):
            (reason,) = (await moving(way, new))["blocked"]
            assert reason.startswith(f"the Kafka group {new} has 1 member (client-")
            assert reason in await moving.refused(way, new)
        await consumer.stop()
        assert len(consumer.values) == RECORDS - 17
    done = await moving.execute("--from-kafka", new)
    assert sum(each["skipped"] for each in done["partitions"]) == RECORDS - 17
    await moving("--from-kafka", new, "--verify")
    more = [Sent(number % PARTITIONS, None, b"more %d" % number) for number in range(6)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, more)
    assert sorted(await ours(cluster, unique, 6)) == sorted(each.value for each in more if each.value)
    await moving.execute("--to-kafka", new)
    await moving.take_back()
    assert await kafka_offset(cluster, new, unique) == RECORDS // PARTITIONS


async def test_an_undo_restores_what_the_kafka_group_had(cluster: Cluster, unique: str, moving: Moving) -> None:
    """Also an offset that was missing; a second undo changes nothing."""
    await fill(cluster, unique, RECORDS, PARTITIONS)
    await put(cluster, {f"{unique}/offsets/{unique}/{n}": b"%d" % (n + 4) for n in range(PARTITIONS)})
    new = f"{unique}-new"
    await move_kafka_offset(cluster, new, unique, 9)

    async def had() -> list[int | None]:
        return [await kafka_offset(cluster, new, unique, number) for number in range(PARTITIONS)]

    assert await had() == [9, None, None]
    done = await moving.execute("--to-kafka", new)
    assert [(each["kafka"], each["new"], each["repeated"]) for each in done["partitions"]] == [
        (9, 4, 5),
        (None, 5, 0),
        (None, 6, 0),
    ]
    assert await had() == [4, 5, 6]
    await moving.take_back()
    assert await had() == [9, None, None]
    again = await moving.kzconsumer("offsets", "import", str(moving.undo), "--execute")
    assert (again.status, "Nothing to change." in again.out) == (0, True), again
    with pytest.raises(KafkaException):  # two partitions have no offset again
        await theirs(cluster, new, unique)
    await moving.execute("--to-kafka", new)
    assert len(await theirs(cluster, new, unique)) == RECORDS - 4 - 5 - 6


@pytest.mark.parametrize("version", WITH_GROUPS)
async def test_a_group_that_runs_is_not_moved(
    cluster_of: Callable[[str], Cluster], unique: str, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, unique = cluster_of(version), unique.replace(".", "-")
    moving = Moving(CommandLine(capsys, "--zookeeper", cluster.connect), unique, tmp_path)
    await fill(cluster, unique)
    assert await consume(cluster, unique, 3, DUAL) == [0, 1, 2]
    async with member(cluster, unique, {unique: 1}, offsets=DUAL):
        for way in ("--to-kafka", "--from-kafka"):
            (reason,) = (await moving(way))["blocked"]
            assert reason.startswith(f"the group {unique} has 1 member ({unique}_")
            assert reason in await moving.refused(way)
        # Members in ZooKeeper with the name of the Kafka group may store their offsets there.
        await put(cluster, {f"{unique}-old/offsets/{unique}/0": b"7"})
        (reason,) = (await Moving(moving.kzconsumer, f"{unique}-old", moving.folder)("--to-kafka", unique))["blocked"]
        assert reason.startswith(f"the group {unique} has 1 member")
    async with kafka_member(cluster, unique, unique):
        for way in ("--to-kafka", "--from-kafka"):
            reason, *_ = (await moving(way))["blocked"]
            assert reason.startswith(f"the Kafka group {unique} has 1 member (rdkafka-")
            assert reason in await moving.refused(way)
    assert await stored_offset(cluster, unique, unique) == 3
    await put(cluster, {f"{unique}/offsets/{unique}/0": b"5"})
    await moving.execute("--to-kafka")
    assert await kafka_offset(cluster, unique, unique) == 5


async def test_a_consumer_that_joins_after_the_look_is_not_overwritten(
    cluster: Cluster, unique: str, moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator itself refuses the offsets; the undo file is there already, and has nothing to undo."""
    from kzconsumer_tools.groups.cluster_access import ClusterAccess

    async def nobody(self: ClusterAccess, group: str) -> tuple[str, ...]:
        return ()

    await fill(cluster, unique)
    assert await consume(cluster, unique, 3, ZOOKEEPER) == [0, 1, 2]
    monkeypatch.setattr(ClusterAccess, "kafka_members", nobody)
    undo = moving.folder / "undo"
    async with kafka_member(cluster, unique, unique):
        done = await moving.kzconsumer("groups", "move", unique, "--to-kafka", "--execute", "--undo", str(undo))
        assert (done.status, "members of Kafka's newer consumer" in done.err) == (1, True), done
    assert await kafka_offset(cluster, unique, unique) is None
    undone = await moving.kzconsumer("offsets", "import", str(undo), "--execute")
    assert (undone.status, "Nothing to change." in undone.out) == (0, True), undone


async def test_offsets_that_no_consumer_can_continue_at_are_not_moved(
    cluster: Cluster, unique: str, moving: Moving, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is named with the way out, and blocks the others unless --topic leaves it out."""
    plan = plan_of(3, 9, offset_version=1)
    await put(cluster, {f"{unique}/offsets/{unique}-again/0": b"1"})
    await create_topic(cluster.connect, f"{unique}-again", 1)
    await fill(cluster, unique, 50, 5)
    offsets = {
        f"{unique}/0": b"4",
        f"{unique}/1": b"99",
        f"{unique}/2": b"x",
        f"{unique}/3": b"3",
        f"{unique}-no/0": b"3",
    }
    await put(cluster, {f"{unique}/offsets/{path}": data for path, data in offsets.items()})
    record = encode_claim_record(ClaimRecord(1, "range", "0x2a", 0, "f", plan))
    await put(cluster, {f"{unique}/claims/{unique}/3": record})

    shown = await moving("--to-kafka")
    assert {
        (each["topic"].removeprefix(unique), each["partition"]): each["blocked"] for each in shown["partitions"]
    } == {
        ("", 0): None,
        ("", 1): "offset_after_log",
        ("", 2): "unreadable_offset",
        ("", 3): "planned_range",
        ("", 4): None,
        ("-again", 0): "recreated_topic",
        ("-no", 0): "topic_missing",
    }
    assert [each["new"] for each in shown["partitions"]] == [4, None, None, None, None, None, None]
    assert len(shown["blocked"]) == 5
    error = await moving.refused("--to-kafka")
    for way_out in (
        f"1 offset is outside the log: `kzconsumer offsets reset {unique} --all-topics --to-current` moves "
        "offsets into it",
        "1 offset is unreadable",
        "1 offset is at a planned range",
        "1 offset is stored for an earlier topic of that name",
        f"1 offset is of a topic or partition that does not exist: `kzconsumer groups clean {unique}` removes them",
    ):
        assert way_out in error
    table = (await moving.kzconsumer("groups", "move", unique, "--to-kafka")).out.splitlines()
    assert table[2].split() == ["TOPIC", "PARTITION", "STORED", "KAFKA", "NEW", "LOG"]
    assert table[3].split() == [unique, "0", "4", "-", "4", "0-10"]
    assert table[4].split() == [unique, "1", "99", "-", "-", "0-10", "not", "moved:", "after", "the", "log"]
    assert table[-1] == "Nothing was changed. With --execute this is an error."
    await moving.execute("--to-kafka", "--topic", f"{unique}:0")
    assert [await kafka_offset(cluster, unique, unique, number) for number in range(3)] == [4, None, None]


@pytest.mark.parametrize("version", STORING)
async def test_there_and_back_under_one_name(
    cluster_of: Callable[[str], Cluster], unique: str, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For members of the group in ZooKeeper that store their offsets in the brokers, as they can from 0.8.2 on."""
    cluster = cluster_of(version)
    name = unique.replace(".", "-")
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    moving = Moving(kzconsumer, name, tmp_path)
    await fill(cluster, name)
    assert await consume(cluster, name, 7, ZOOKEEPER) == list(range(7))

    async def both() -> tuple[int | None, int | None]:
        return await kafka_offset(cluster, name, name), await stored_offset(cluster, name, name)

    async def shown(storage: str) -> tuple[object, ...]:
        words = (name, "--storage", storage)
        (offsets,) = (await kzconsumer.json("offsets", "show", *words))["partitions"]
        (lag,) = (await kzconsumer.json("lag", *words))["partitions"]
        (described,) = (await kzconsumer.json("groups", "describe", *words))["partitions"]
        assert offsets["stored"] == lag["stored"] == described["stored"]
        assert lag["lag"] == (None if lag["stored"] is None else 30 - lag["stored"])
        return offsets["stored"], offsets["brokers"], offsets["zookeeper"], offsets["epoch"]

    plan = await moving("--to-kafka")
    assert (plan["coordinated"], await both()) == (version != "0.8.2.2", (None, 7))
    await moving.execute("--to-kafka")
    first = moving.undo
    assert await both() == (7, 7)
    assert await consume(cluster, name, 5, KAFKA) == list(range(7, 12))
    assert await shown("kafka") == (12, 12, 7, 0)
    assert await shown("both") == (12, 12, 7, 0)
    assert await shown("zookeeper") == (7, None, 7, 0)
    for form, more in (("table", []), ("wide", ["WRITTEN"])):
        table = (await kzconsumer("offsets", "show", name, "--storage", "both", "-o", form)).out.splitlines()
        assert table[2].split() == ["PARTITION", "STORED", "ZOOKEEPER", "BROKERS", "EPOCH", "PLAN", "TOPIC", *more]
        number, *offsets, _, _, topic, written_at = [*table[3].split(), "-"][:8]
        assert (number, offsets, topic, written_at[-1]) == ("0", ["12", "7", "12"], name, "Z" if more else "-")

    # ZooKeeper's offset is old: to set the brokers' back to it the operator has to say so.
    assert "say with --storage which of them count" in await moving.refused("--to-kafka")
    assert (await moving("--to-kafka", "--storage", "kafka"))["same"] is True
    (back,) = (await moving("--to-kafka", "--storage", "zookeeper"))["partitions"]
    assert (back["stored"], back["kafka"], back["new"], back["repeated"]) == (7, 12, 7, 5)

    await moving.execute("--from-kafka")
    assert await both() == (12, 12)
    assert await shown("kafka") == (12, 12, 12, 1)
    assert await consume(cluster, name, 2, ZOOKEEPER) == [12, 13]
    assert await consume(cluster, name, 1, DUAL) == [14]
    assert await both() == (15, 15)

    # Before the first move there was nothing.
    moving.undo = first
    await moving.take_back()
    assert await both() == (None, 15)
    assert await shown("kafka") == (None, None, 15, 1)
    moving.undo = Path(f"{first}-undo")
    await moving.take_back()
    assert await both() == (15, 15)
    assert await consume(cluster, name, 1, KAFKA) == [15]


async def test_brokers_that_coordinate_no_groups(
    cluster_of: Callable[[str], Cluster], unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = cluster_of("0.8.2.2")
    await fill(cluster, unique)
    await put(cluster, {f"{unique}/offsets/{unique}/0": b"5"})
    moving = Moving(CommandLine(capsys, "--zookeeper", cluster.connect), unique, tmp_path)
    error = await moving.refused("--to-kafka", f"{unique}-new")
    assert error == (
        "kzconsumer: brokers of 0.8 store offsets but coordinate no groups: no consumer could continue as "
        f"{unique}-new; update the brokers to 0.9 or later first\n"
    )


async def test_a_reset_is_moved(cluster: Cluster, unique: str, tmp_path: Path, moving: Moving) -> None:
    """With its epoch, so that it counts for members with offsets in the brokers alone, though those had later ones."""
    await fill(cluster, unique)
    assert await consume(cluster, unique, 20, KAFKA) == list(range(20))
    none = await moving.kzconsumer("groups", "move", unique, "--to-kafka")
    assert (none.status, "has no offset in ZooKeeper; --storage says where else" in none.err) == (1, True), none

    async def reset(*words: str) -> None:
        undo = str(tmp_path / f"reset-{words[0]}")
        done = await moving.kzconsumer(
            "offsets", "reset", unique, *words, "--topic", unique, "--execute", "--undo", undo
        )
        assert done.status == 0, done

    await reset("--to-offset", "5")
    (done,) = (await moving.execute("--to-kafka"))["partitions"]
    assert (done["kafka"], done["new"], done["repeated"]) == (20, 5, 15)
    assert await consume(cluster, unique, 2, KAFKA) == [5, 6]
    await put(cluster, {f"{unique}/offsets/{unique}/0": b"99"})
    assert "outside the log" in await moving.refused("--to-kafka")
    await reset("--to-current")
    (done,) = (await moving.execute("--to-kafka"))["partitions"]
    assert (done["stored"], done["new"], done["skipped"]) == (30, 30, 23)
    assert await kafka_offset(cluster, unique, unique) == 30


async def test_with_tls_and_sasl(
    secured: Secured, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = secured.cluster_of("3.9.1")
    await fill(cluster, unique, 3, PARTITIONS)
    await put(cluster, {f"{unique}/offsets/{unique}/0": b"1"})
    topics = {"topics": {unique: 1}}
    table = secured.table(cluster, "SASL_SSL", "PLAIN")
    file = written(tmp_path, {"connect": cluster.connect}, unique, brokers=table, subscription=topics)
    moving = Moving(CommandLine(capsys, "--config", file), unique, tmp_path)
    await moving.execute("--to-kafka", f"{unique}-new")
    assert await kafka_offset(cluster, f"{unique}-new", unique) == 1
