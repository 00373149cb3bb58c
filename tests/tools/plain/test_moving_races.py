"""What others do while `groups move` stores offsets: a simulated ZooKeeper, and a coordinator in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from kzconsumer.errors import NotDoneError, NotFoundError
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.start_rules import Storage, WithBrokers
from kzconsumer.registry.claim_record import ClaimRecord, CommitMark, StoredPosition, encode_claim_record
from kzconsumer.registry.paths import GroupPaths, topic
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.node_changes import ChangeProgress
from kzconsumer_tools.offsets.move import Move, MoveRequest, apply_move, prepare_move
from kzconsumer_tools.offsets.move_rules import Side
from kzconsumer_tools.offsets.prepare import read_view
from kzconsumer_tools.tables.offset_tables import compared_table, move_table
from tests.support.cluster_in_memory import Cluster
from tests.support.simulated.clients import Clients

GROUP = GroupPaths("orders")
PLACES = [TopicPartition("orders", number) for number in range(3)]
UNDO = Path("before.jsonl")
OFFSETS = dict(zip(PLACES, (4, 5, 6), strict=True))


def asked(to: Side = "kafka", kafka_group: str = "new", storage: Storage | None = None) -> MoveRequest:
    return MoveRequest("orders", kafka_group, to, storage, None)


def play(script: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run(session: ZooKeeperSession) -> None:
        cluster = Cluster(session)
        await session.ensure(topic("orders").rpartition("/")[0])
        await session.create(topic("orders"), msgspec.json.encode({"partitions": {"0": [1], "1": [1], "2": [1]}}))
        for place, offset in OFFSETS.items():
            await put(session, GROUP.offset(place), b"%d" % offset)
        await script(cluster)

    Clients().play(run)


async def applied(cluster: Cluster, asked: MoveRequest, move: Move) -> None:
    """As the command does it."""
    async with ChangeProgress("partition") as progress:
        progress.begin(sum(each.changes for each in move.shown.partitions), UNDO)
        await apply_move(cluster, asked, move, progress)


async def put(session: ZooKeeperSession, path: str, data: bytes) -> None:
    await session.ensure(path)
    await session.set(path, data, -1)


def offsets(cluster: Cluster, group: str = "new") -> dict[TopicPartition, int]:
    return {place: at.offset for place, at in cluster.has.get(group, {}).items()}


def test_nothing_happens_meanwhile() -> None:
    """The control of the others; a second move has nothing to do, and the sides are the same."""

    async def script(cluster: Cluster) -> None:
        move = await prepare_move(cluster, asked())
        table = move_table(move.shown, "--context prod").splitlines()
        assert table[0] == "group orders in ZooKeeper: 3 offsets would move to Kafka group new"
        assert table[3].split() == ["orders", "0", "4", "-", "4", "0-10"]
        assert table[-1].startswith("Nothing was changed. Add --execute")
        assert "3 of 3 partitions differ" in compared_table(move.shown)
        await applied(cluster, asked(), move)
        assert offsets(cluster) == OFFSETS
        after = (await prepare_move(cluster, asked())).shown
        assert after.same
        assert not any(each.changes for each in after.partitions)
        assert "the same offsets in 3 partitions" in compared_table(after)

    play(script)


def test_what_a_sink_has_committed_is_not_handed_to_the_brokers_again() -> None:
    """A program that knows no claim records has set back the stored offset: a member begins at the mark."""

    async def script(cluster: Cluster) -> None:
        stat = await cluster.session.exists(topic("orders"))
        assert stat is not None
        mark = CommitMark(until=8, incarnation=f"{stat.czxid:#x}", epoch=0, fingerprint="f")
        record = ClaimRecord(1, "range", mark.incarnation, fingerprint="f", mark=mark, position=StoredPosition(8, 3))
        await put(cluster.session, GROUP.claim_record(PLACES[0]), encode_claim_record(record))
        await applied(cluster, asked(), await prepare_move(cluster, asked()))
        assert offsets(cluster) == {**OFFSETS, PLACES[0]: 8}
        assert cluster.has["new"][PLACES[0]].leader_epoch == 3

    play(script)


@pytest.mark.parametrize("kafka_group", ["new", "orders"])
def test_a_member_joins_meanwhile(kafka_group: str) -> None:
    """It may have begun at the offsets that were moved: both sides would have the records after them."""

    async def script(cluster: Cluster) -> None:
        async def join() -> None:
            await put(cluster.session, f"{GROUP.ids}/orders_late", b"{}")

        cluster.meanwhile = join
        move = await prepare_move(cluster, asked(kafka_group=kafka_group))
        with pytest.raises(
            NotDoneError, match=rf"meanwhile.*; 3 of 3 partitions were changed; the undo file is {UNDO}$"
        ):
            await applied(cluster, asked(kafka_group=kafka_group), move)

    play(script)


def test_a_member_commits_meanwhile_and_leaves() -> None:
    async def script(cluster: Cluster) -> None:
        async def commit() -> None:
            await put(cluster.session, GROUP.offset(PLACES[1]), b"9")

        cluster.meanwhile = commit
        move = await prepare_move(cluster, asked())
        with pytest.raises(NotDoneError, match="others were stored meanwhile: try again"):
            await applied(cluster, asked(), move)
        cluster.meanwhile = None
        await applied(cluster, asked(), await prepare_move(cluster, asked()))
        assert offsets(cluster) == {**OFFSETS, PLACES[1]: 9}

    play(script)


def test_the_brokers_offsets_change_after_the_look() -> None:
    """They are not what the undo file has: nothing is stored."""

    async def script(cluster: Cluster) -> None:
        move = await prepare_move(cluster, asked())
        cluster.has["new"] = {PLACES[2]: WithBrokers(8, None)}
        with pytest.raises(NotDoneError, match=r"changed meanwhile; nothing was changed$"):
            await applied(cluster, asked(), move)
        assert offsets(cluster) == {PLACES[2]: 8}

    play(script)


def test_old_offsets_in_zookeeper_are_not_moved_unless_the_operator_says_so() -> None:
    """Members that store their offsets in the brokers alone leave ZooKeeper's behind."""

    async def script(cluster: Cluster) -> None:
        cluster.has["orders"] = {PLACES[0]: WithBrokers(7, 0), PLACES[1]: WithBrokers(2, None)}
        (reason,) = (await prepare_move(cluster, asked())).shown.blocked
        assert reason.startswith("the brokers have later offsets of group orders than ZooKeeper, in 1 partition: ")
        new: dict[Storage, list[int | None]] = {"zookeeper": [4, 5, 6], "kafka": [7, 2], "both": [7, 5, 6]}
        for storage, expected in new.items():
            shown = (await prepare_move(cluster, asked(storage=storage))).shown
            assert ([each.new for each in shown.partitions][: len(expected)], shown.blocked) == (expected, ())

    play(script)


def test_a_topic_of_which_only_the_brokers_have_offsets_is_looked_up() -> None:
    """As for one that ZooKeeper has offsets of, it is known which of its partitions exist."""
    bills, gone = TopicPartition("bills", 0), TopicPartition("gone", 0)

    async def script(cluster: Cluster) -> None:
        await cluster.session.create(topic("bills"), msgspec.json.encode({"partitions": {"0": [1]}}))
        cluster.has["orders"] = dict.fromkeys((*PLACES[:2], bills, gone), WithBrokers(7, None))
        facts = (await read_view(cluster, await cluster.nodes("orders"), "both")).facts
        assert facts.offsets == {**OFFSETS, **dict.fromkeys((*PLACES[:2], bills, gone), 7)}
        assert [facts.gone(each) for each in (*PLACES, bills, gone)] == [False] * 4 + [True]

    play(script)


def test_back_to_zookeeper() -> None:
    async def script(cluster: Cluster) -> None:
        with pytest.raises(NotFoundError, match="group new has no offset in the brokers"):
            await prepare_move(cluster, asked("zookeeper"))
        cluster.has["new"] = {PLACES[0]: WithBrokers(7, None), PLACES[1]: WithBrokers(11, None)}
        cluster.has["new"][TopicPartition("gone", 0)] = WithBrokers(1, None)
        cluster.members = ("consumer-1",)
        shown = (await prepare_move(cluster, asked("zookeeper"))).shown
        assert [each.blocked for each in shown.partitions] == ["topic_missing", None, "offset_after_log", None]
        assert [each.new for each in shown.partitions] == [None, 7, 5, 6]
        assert shown.blocked[0] == "the Kafka group new has 1 member (consumer-1): stop it first"
        table = move_table(shown, "").splitlines()
        assert table[0] == "Kafka group new: 1 offset would move to group orders in ZooKeeper"
        assert table[-1] == "Nothing was changed. With --execute this is an error."
        cluster.members = ()
        del cluster.has["new"][TopicPartition("gone", 0)]
        cluster.has["new"][PLACES[1]] = WithBrokers(10, None)
        move = await prepare_move(cluster, asked("zookeeper"))
        cluster.reported["orders"] = ""
        with pytest.raises(
            NotDoneError, match=r"the brokers report different topics orders, try again; nothing was changed$"
        ):
            await applied(cluster, asked("zookeeper"), move)
        cluster.reported["orders"] = "the id"
        await applied(cluster, asked("zookeeper"), move)
        nodes = [await cluster.session.get(GROUP.offset(place)) for place in PLACES]
        assert [node.data for node in nodes] == [b"7", b"10", b"6"]
        recorded = await cluster.session.get(GROUP.topic("orders"))
        assert b"the id" in recorded.data
        assert recorded.stat.mzxid < nodes[0].stat.mzxid, "members would take the offset for one of an earlier topic"

    play(script)
