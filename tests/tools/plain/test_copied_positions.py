"""A stored offset is copied with what it refers to: the topic, and the leader epoch of the record before it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, cast

import msgspec
import pytest

from kzconsumer.errors import CoordinatorError, NotDoneError, NotFoundError
from kzconsumer.lag.partition import Why
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.start_rules import Storage, WithBrokers
from kzconsumer.registry.claim_record import (
    Claimed,
    ClaimRecord,
    CommitMark,
    StoredPosition,
    decode_claim_record,
    encode_claim_record,
)
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.group_records import TopicRecord, last_incarnation
from kzconsumer.registry.paths import GroupPaths, topic
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.commands.cluster_option import ClusterOption
from kzconsumer_tools.commands.groups_repair import clean_nodes, delete_nodes, restore_nodes
from kzconsumer_tools.commands.offsets_apply import Prepared, import_offsets, perform, reset
from kzconsumer_tools.groups.cluster_access import ClusterAccess
from kzconsumer_tools.groups.diagnosis import RepairResult
from kzconsumer_tools.node_changes import ChangeProgress, read_nodes
from kzconsumer_tools.offsets.move import MoveRequest, apply_move, prepare_move
from kzconsumer_tools.offsets.offset_changes import Reset, read_undo
from kzconsumer_tools.offsets.offset_files import FileFormat, SavedOffset, read_offsets, write_offsets
from kzconsumer_tools.offsets.prepare import OffsetChanges, prepare_clone, prepare_export, prepare_reset
from kzconsumer_tools.offsets.stored_offsets import OffsetOrigin
from tests.support.cluster_in_memory import Cluster
from tests.support.plans import plan_of
from tests.support.simulated.clients import Clients

GROUP = GroupPaths("orders")
PLACE = TopicPartition("orders", 0)
ID = "Zm9vYmFyYmF6cXV4MTIzNA"
Script = Callable[[Cluster], Awaitable[None]]


def play(script: Script, topic_id: str = "") -> None:
    """Group `orders` has stored offset 6; the last record before it was of leader epoch 5."""

    async def run(session: ZooKeeperSession) -> None:
        cluster = Cluster(session)
        await create_topic(session, topic_id)
        record = ClaimRecord(1, "range", f"{await incarnation(session):#x}", position=StoredPosition(6, 5))
        await put(session, GROUP.offset(PLACE), b"6")
        await put(session, GROUP.claim_record(PLACE), encode_claim_record(record))
        await script(cluster)

    Clients().play(run)


class At:
    """The chosen cluster, as a verb gets it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.zookeeper = ZooKeeperSettings(connect="zk0:2181")

    @asynccontextmanager
    async def access(self) -> AsyncIterator[Cluster]:
        yield self.cluster


async def create_topic(session: ZooKeeperSession, topic_id: str = "") -> None:
    content = {"partitions": {"0": [1]}, **({"topic_id": topic_id} if topic_id else {})}
    await session.ensure(topic("orders").rpartition("/")[0])
    await session.create(topic("orders"), msgspec.json.encode(content))


async def recreate_topic(cluster: Cluster) -> None:
    await cluster.session.delete(topic("orders"), -1)
    await create_topic(cluster.session)


async def incarnation(session: ZooKeeperSession) -> int:
    stat = await session.exists(topic("orders"))
    assert stat is not None
    return stat.czxid


async def put(session: ZooKeeperSession, path: str, data: bytes) -> None:
    await session.ensure(path)
    await session.set(path, data, -1)


async def position(cluster: Cluster, group: str) -> tuple[int | None, int]:
    """The stored offset, and the leader epoch before it, as a claim finds them."""
    paths = GroupPaths(group)
    owners = OwnerRegistry(cluster.session, paths, "range")
    await owners.prepare(["orders"])
    claimed = await owners.claim(PLACE, ConsumerThreadId("c", 0), await incarnation(cluster.session))
    assert isinstance(claimed, Claimed)
    assert await owners.release(claimed.fence)
    return claimed.stored, claimed.record.leader_epoch_before(claimed.stored)


async def exported(cluster: Cluster, format: FileFormat, group: str = "orders") -> bytes:
    return write_offsets(format, prepare_export(await cluster.nodes(group), format, None))


async def imported(cluster: Cluster, content: bytes, group: str) -> None:
    file = read_offsets(content)
    saved = [msgspec.structs.replace(each, group=group) for each in file.offsets]
    (changes,) = await import_offsets(saved, group, file.format == "nodes", cluster)
    await changes.apply(cluster, ChangeProgress("partition"))


@pytest.mark.parametrize("format", ["zookeeper", "nodes"])
@pytest.mark.parametrize("topic_id", ["", ID])
def test_an_export_and_its_import(format: FileFormat, topic_id: str) -> None:
    async def script(cluster: Cluster) -> None:
        await imported(cluster, await exported(cluster, format), "new")
        assert await position(cluster, "new") == (6, 5)
        assert await position(cluster, "orders") == (6, 5)

    play(script, topic_id)


def test_kafkas_own_formats_have_offsets_only() -> None:
    async def script(cluster: Cluster) -> None:
        for format in ("csv", "spark"):
            await imported(cluster, await exported(cluster, format), format)
            assert await position(cluster, format) == (6, -1)

    play(script)


def test_a_topic_that_is_gone_is_left_out_of_an_import() -> None:
    """A file of gone topics alone is refused."""

    async def script(cluster: Cluster) -> None:
        content = await exported(cluster, "csv")
        saved = [msgspec.structs.replace(each, group="new") for each in read_offsets(content + b"gone,0,5\n").offsets]
        (changes,) = await import_offsets(saved, "new", False, cluster)
        assert changes.left_out == ("gone-0",)
        await changes.apply(cluster, ChangeProgress("partition"))
        assert await position(cluster, "new") == (6, -1)
        with pytest.raises(NotFoundError, match="there is no topic gone"):
            await import_offsets(saved[-1:], "new", False, cluster)

    play(script)


def test_files_of_before_can_be_read() -> None:
    async def script(cluster: Cluster) -> None:
        for content in (
            b"/consumers/orders/offsets/orders/0:4\n",
            b'{"path":"/consumers/orders/offsets/orders/0","data":"4"}\n',
        ):
            await imported(cluster, content, "orders")
            assert await position(cluster, "orders") == (4, -1)

    play(script)


def test_a_clone() -> None:
    async def script(cluster: Cluster) -> None:
        changes = await prepare_clone(cluster, await cluster.nodes("orders"), await cluster.nodes("new"), None)
        await changes.apply(cluster, ChangeProgress("partition"))
        assert await position(cluster, "new") == (6, 5)

    play(script)


def test_an_offset_that_is_moved_into_the_log_has_no_epoch() -> None:
    async def script(cluster: Cluster) -> None:
        content = (await exported(cluster, "zookeeper")).replace(b":6:", b":60:")
        await imported(cluster, content, "new")
        assert await position(cluster, "new") == (10, -1)

    play(script)


def test_a_reset_and_its_undo() -> None:
    """The offset that an operator chooses is one of the log as it is now."""

    async def script(cluster: Cluster) -> None:
        nodes = await cluster.nodes("orders")
        changes = OffsetChanges(nodes, await prepare_reset(cluster, nodes, [PLACE], Reset("offset", 2)))
        undo = changes.undo_file()
        await changes.apply(cluster, ChangeProgress("partition"))
        node = await cluster.session.get(GROUP.claim_record(PLACE))
        assert decode_claim_record(node.data).position is msgspec.UNSET
        await imported(cluster, undo, "orders")
        assert await position(cluster, "orders") == (6, 5)

    play(script)


@pytest.mark.parametrize("kind", ["current", "shift", "offset"])
@pytest.mark.parametrize(
    ("storage", "brokers", "refused"),
    [
        ("kafka", WithBrokers(8, 0), True),
        ("kafka", WithBrokers(4, 0), True),
        (None, WithBrokers(8, 0), True),
        (None, WithBrokers(4, 0), False),  # ZooKeeper's counts: members that store with the brokers alone go on
        ("both", WithBrokers(8, 0), True),
        ("zookeeper", WithBrokers(8, 0), False),
        ("kafka", None, False),
        ("kafka", WithBrokers(6, 0), False),
    ],
)
def test_a_reset_counts_from_the_offset_at_which_members_start(
    storage: Storage | None, brokers: WithBrokers | None, refused: bool, kind: Literal["current", "shift", "offset"]
) -> None:
    """From ZooKeeper's, of members that store theirs with the brokers, `--to-current` may be the end of the log."""

    async def script(cluster: Cluster) -> None:
        if brokers is not None:
            cluster.has["orders"] = {PLACE: brokers}
        preparing = reset(
            "zk0:2181", "orders", {"orders": None}, Reset(kind, -1 if kind == "shift" else 2), storage, cluster
        )
        if refused and kind != "offset":
            with pytest.raises(NotDoneError, match=r"for orders-0: `kzconsumer groups move orders --from-kafka"):
                await preparing
        else:
            assert (await preparing)[0].changes[0].after == {"current": b"6", "shift": b"5", "offset": b"2"}[kind]

    play(script)


def test_a_reset_says_what_to_do_if_the_coordinator_does_not_answer() -> None:
    class Away(Cluster):
        async def known_offsets(
            self, group: str, partitions: Collection[TopicPartition]
        ) -> dict[TopicPartition, WithBrokers | Why]:
            raise CoordinatorError("offsets of group orders: not authorized")

    async def script(cluster: Cluster) -> None:
        away, to = Away(cluster.session), Reset("current")
        with pytest.raises(NotDoneError, match=r"not authorized: .* say --storage zookeeper \(nothing was changed"):
            await reset("zk0:2181", "orders", {"orders": None}, to, None, away)
        assert await reset("zk0:2181", "orders", {"orders": None}, to, "zookeeper", away)

    play(script)


def test_which_groups_of_a_file_were_changed_before_a_change_failed(tmp_path: Path) -> None:
    async def script(cluster: Cluster) -> None:
        await put(cluster.session, GroupPaths("others").offset(PLACE), b"3")
        saved = [SavedOffset(group, PLACE, b"4") for group in ("orders", "others")]
        undo = tmp_path / "undo.jsonl"

        async def prepared(access: ClusterAccess) -> Prepared:
            changes = await import_offsets(saved, None, False, access)
            await put(cluster.session, GroupPaths("others").offset(PLACE), b"5")
            return changes

        with pytest.raises(NotDoneError, match=rf"; 1 of 2 partitions was changed \(all of group orders\); .* {undo}$"):
            await perform(cast("ClusterOption", At(cluster)), prepared, True, True, undo)
        assert (await cluster.session.get(GROUP.offset(PLACE))).data == b"4"

    play(script)


@pytest.mark.parametrize("recreated", [True, False])
@pytest.mark.parametrize("of", ["plan", "claimed plan", "mark"])
def test_what_a_sink_has_published_of_an_earlier_topic_is_not_published_again(
    of: str, recreated: bool, tmp_path: Path
) -> None:
    """The destination has none of the records that the topic has since it was created again."""

    async def script(cluster: Cluster) -> None:
        old = f"{await incarnation(cluster.session):#x}"
        mark = CommitMark(until=6, incarnation=old, epoch=0, fingerprint="f")
        plan = plan_of(6, 9, incarnation=old) if "plan" in of else None
        record = ClaimRecord(1, "range", old, 0, "f", plan, mark)
        await put(cluster.session, GROUP.claim_record(PLACE), encode_claim_record(record))
        if recreated:
            await recreate_topic(cluster)
            if of == "claimed plan":  # a member has claimed the partition, and has not dropped the plan yet
                await cluster.session.delete(GROUP.offset(PLACE), -1)
                record = msgspec.structs.replace(
                    record, incarnation=f"{await incarnation(cluster.session):#x}", epoch=1
                )
                await put(cluster.session, GROUP.claim_record(PLACE), encode_claim_record(record))
        resetting = partial(reset, "zk0:2181", "orders", {"orders": None}, Reset("earliest"), None)
        changing = perform(cast("ClusterOption", At(cluster)), resetting, True, False, tmp_path / "undo")
        if recreated:
            await changing
            assert await position(cluster, "orders") == (0, -1)
        else:
            with pytest.raises(NotDoneError, match=r"; use --republish if that is meant \(nothing was changed\)$"):
                await changing

    play(script)


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("format", ["zookeeper", "nodes"])
def test_offsets_of_an_earlier_topic_are_not_imported(format: FileFormat, claimed: bool) -> None:
    """They would be taken for offsets of the new topic, of which the records before them would never be read."""

    async def script(cluster: Cluster) -> None:
        if not claimed:  # by a member of ours
            await cluster.session.delete(GROUP.claim_record(PLACE), -1)
        before = await exported(cluster, format)
        await recreate_topic(cluster)
        for content in (before, await exported(cluster, format)):
            with pytest.raises(NotDoneError, match=r"1 offset \(orders-0\) of another topic .* remove the topics"):
                await imported(cluster, content, "new")
        assert await cluster.session.find(GroupPaths("new").offset(PLACE)) is None

    play(script)


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("verb", [delete_nodes, clean_nodes])
def test_offsets_of_an_earlier_topic_are_not_restored(
    verb: Callable[..., Awaitable[RepairResult]], claimed: bool, again: bool, tmp_path: Path
) -> None:
    """A new node of theirs would be younger than the new topic, of which the records before it would never be read."""

    async def script(cluster: Cluster) -> None:
        session, file = cluster.session, tmp_path / "undo.jsonl"
        arguments = Namespace(execute=True, undo=file, topic=None, file=file)
        if not claimed:
            await session.delete(GROUP.claim_record(PLACE), -1)
        if verb is clean_nodes:
            await session.create(topic("others"), b'{"partitions":{"0":[1]}}')
            await session.delete(topic("orders"), -1)
        await verb(arguments, cast("ClusterOption", At(cluster)), "orders")
        assert await session.find(GROUP.offset(PLACE)) is None
        if again and verb is delete_nodes:
            await recreate_topic(cluster)
        elif again:
            await create_topic(session)
        saved = read_nodes(file.read_bytes())
        if again:
            with pytest.raises(NotDoneError, match=r"1 offset \(orders-0\) of another topic .* remove their lines"):
                await restore_nodes(arguments, cast("ClusterOption", At(cluster)), "orders", saved)
            assert await session.find(GROUP.offset(PLACE)) is None
        else:
            await restore_nodes(arguments, cast("ClusterOption", At(cluster)), "orders", saved)
            assert (await session.get(GROUP.offset(PLACE))).data == b"6"

    play(script)


def test_a_topic_keeps_its_incarnation_in_a_group_that_is_restored(tmp_path: Path) -> None:
    """Of a cluster without ZooKeeper: the group's own record says so, by the transaction that wrote it."""

    async def script(cluster: Cluster) -> None:
        session, file = cluster.session, tmp_path / "undo.jsonl"
        arguments, at = Namespace(execute=True, undo=file, topic=None, file=file), cast("ClusterOption", At(cluster))
        await put(session, GROUP.topic("orders"), msgspec.json.encode(TopicRecord(1, (ID,))))
        before = last_incarnation(await session.get(GROUP.topic("orders")))
        await delete_nodes(arguments, at, "orders")
        saved = read_nodes(file.read_bytes())
        await restore_nodes(arguments, at, "orders", saved)
        assert last_incarnation(await session.get(GROUP.topic("orders"))) == before
        await put(session, GROUP.topic("orders"), msgspec.json.encode(TopicRecord(1, (ID,), f"{before:#x}")))
        assert (await restore_nodes(arguments, at, "orders", saved)).nodes == ()

    play(script)


def test_offsets_of_an_earlier_topic_are_neither_cloned_nor_written_for_kafkas_tools() -> None:
    async def script(cluster: Cluster) -> None:
        await recreate_topic(cluster)
        source = await cluster.nodes("orders")
        with pytest.raises(NotDoneError, match="`kzconsumer offsets reset orders` sets where to begin"):
            await prepare_clone(cluster, source, await cluster.nodes("new"), None)
        for format in ("csv", "spark"):
            with pytest.raises(NotDoneError, match="`kzconsumer offsets reset orders` sets where to begin"):
                await exported(cluster, format)
        await put(cluster.session, GROUP.offset(PLACE), b"2")  # by a member that reads the new topic
        assert b"orders,0,2" in await exported(cluster, "csv")
        await imported(cluster, await exported(cluster, "zookeeper"), "new")
        assert await position(cluster, "new") == (2, -1)

    play(script)


@pytest.mark.parametrize("keeps_epochs", [True, False])
def test_a_move_to_the_brokers_and_back(keeps_epochs: bool) -> None:
    async def script(cluster: Cluster) -> None:
        cluster.keeps_epochs = keeps_epochs
        to_kafka = MoveRequest("orders", "new", "kafka", None, None)
        move = await prepare_move(cluster, to_kafka)
        await apply_move(cluster, to_kafka, move, ChangeProgress("partition"))
        led = 5 if keeps_epochs else -1
        assert cluster.has["new"] == {PLACE: WithBrokers(6, None, leader_epoch=led)}

        cluster.has["new"][PLACE] = WithBrokers(8, None, leader_epoch=7)
        back = MoveRequest("orders", "new", "zookeeper", None, None)
        cluster.has["orders"] = {PLACE: WithBrokers(9, None)}  # says nothing of where the offsets of `new` belong
        move = await prepare_move(cluster, back)
        assert not [each for each in move.shown.blocked if "later offsets" in each]
        undo = move.changes.undo_file()
        await apply_move(cluster, back, move, ChangeProgress("partition"))
        assert await position(cluster, "orders") == (8, 7)
        await imported(cluster, undo, "orders")
        assert await position(cluster, "orders") == (6, 5)

    play(script)


def test_an_undo_file_of_the_brokers_offsets() -> None:
    async def script(cluster: Cluster) -> None:
        cluster.has["new"] = {PLACE: WithBrokers(3, None, leader_epoch=4)}
        move = await prepare_move(cluster, MoveRequest("orders", "new", "kafka", None, None))
        saved = read_undo(move.changes.undo_file())
        assert saved is not None
        assert [each.stored for each in saved] == [WithBrokers(3, None, leader_epoch=4)]

    play(script)


def test_the_forms() -> None:
    line = b"/consumers/a:b/offsets/orders/1:24"
    for text, origin in (
        (b"", OffsetOrigin()),
        (b":0x1a", OffsetOrigin("0x1a")),
        (b":0x1a:5", OffsetOrigin("0x1a", 5)),
        (b":%s:0" % ID.encode(), OffsetOrigin(ID, 0)),
    ):
        assert read_offsets(line + text).offsets == (SavedOffset("a:b", TopicPartition("orders", 1), b"24", origin),)
    for text in (b":", b":0x1a:", b":0x1a:x", b":0x1a:5:6", b":a b"):
        with pytest.raises(ValueError, match="line 1: not /consumers/"):
            read_offsets(line + text)
