"""Topics that brokers report by id keep the identity that they had in ZooKeeper, and a recreated one gets another."""

from __future__ import annotations

import msgspec
import pytest

from kzconsumer.errors import ZooKeeperError
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.broker_topics import TopicIdentities
from kzconsumer.registry.claim_record import Claimed
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.paths import GroupPaths, topic
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches
from tests.support.simulated.clients import Clients

PATHS = GroupPaths("g")
PARTITION = TopicPartition("orders", 0)


def identities(session: ZooKeeperSession) -> TopicIdentities:
    return TopicIdentities(session, Watches(session), PATHS)


async def make_topic(session: ZooKeeperSession, **fields: str) -> int:
    """The czxid of its node, as a cluster in ZooKeeper mode makes it."""
    path = topic("orders")
    await session.ensure(path.rpartition("/")[0])
    await session.create(path, msgspec.json.encode({"version": 3, "partitions": {"0": [1]}, **fields}))
    stat = await session.exists(path)
    assert stat is not None
    return stat.czxid


@pytest.mark.parametrize("fields", [{"topic_id": "A"}, {}], ids=["same id", "node without id"])
def test_a_topic_of_before_the_migration_keeps_its_incarnation(fields: dict[str, str]) -> None:
    async def script(session: ZooKeeperSession) -> None:
        created = await make_topic(session, **fields)
        assert await identities(session).incarnation("orders", "A") == created
        await session.delete(topic("orders"), 0)  # the cluster's nodes are removed
        assert await identities(session).incarnation("orders", "A") == created

    Clients().play(script)


def test_a_node_that_is_left_of_an_earlier_topic_says_nothing_of_the_present_one() -> None:
    async def script(session: ZooKeeperSession) -> None:
        created = await make_topic(session, topic_id="Z")
        await OwnerRegistry(session, PATHS, "range").claim(PARTITION, ConsumerThreadId("g_a", 0), created)
        found = await identities(session).incarnation("orders", "A")
        assert found is not None
        assert found > created

    Clients().play(script)


def test_a_recreated_topic_is_later_than_all_that_was_stored_and_the_former_id_is_never_present_again() -> None:
    async def script(session: ZooKeeperSession) -> None:
        await make_topic(session, topic_id="A")
        ours = identities(session)
        first = await ours.incarnation("orders", "A")
        await session.ensure(PATHS.offset(PARTITION))
        stored = await session.exists(PATHS.offset(PARTITION))
        second = await ours.incarnation("orders", "B")
        assert first is not None
        assert second is not None
        assert stored is not None
        assert first < stored.czxid < second
        assert await ours.incarnation("orders", "A") is None  # from a broker that lags behind
        assert await ours.incarnation("orders", "B") == await identities(session).incarnation("orders", "B") == second

    Clients().play(script)


def test_a_group_that_begins_when_the_clusters_nodes_are_gone_takes_the_topic_for_the_one_it_consumed() -> None:
    async def script(session: ZooKeeperSession) -> None:
        await OwnerRegistry(session, PATHS, "range").claim(PARTITION, ConsumerThreadId("g_a", 0), 0x2A)
        assert await identities(session).incarnation("orders", "A") == 0x2A
        assert await identities(session).incarnation("orders", "B") != 0x2A

    Clients().play(script)


def test_offsets_of_members_of_other_kinds_are_of_the_topic_that_is_there_when_the_clusters_nodes_are_gone() -> None:
    """Nothing says that it is another topic; and an offset that is older than its topic is not used."""

    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(PATHS.containers("orders")[1])
        await session.create(PATHS.offset(PARTITION), b"7")
        incarnation = await identities(session).incarnation("orders", "A")
        assert incarnation is not None
        claimed = await OwnerRegistry(session, PATHS, "range").claim(PARTITION, ConsumerThreadId("g_a", 0), incarnation)
        assert isinstance(claimed, Claimed)
        assert claimed.stored == 7

    Clients().play(script)


UNREADABLE = pytest.mark.parametrize(
    "content", [b'{"version":2}', b"?", b'{"version":1,"assignor":"","incarnation":"?"}']
)


@UNREADABLE
def test_a_claim_record_that_is_unreadable_keeps_no_topic_from_being_known_by_others(content: bytes) -> None:
    async def script(session: ZooKeeperSession) -> None:
        owners = OwnerRegistry(session, PATHS, "range")
        for partition in range(3):
            await owners.claim(TopicPartition("orders", partition), ConsumerThreadId("g_a", 0), 0x2A)
        await session.set(PATHS.claim_record(TopicPartition("orders", 1)), content, -1)
        assert await identities(session).known("orders", "A") == 0x2A
        assert await identities(session).incarnation("orders", "A") == 0x2A

    Clients().play(script)


@pytest.mark.parametrize("claimed", [True, False], ids=["claim record", "node of the topic"])
def test_what_is_unreadable_is_named(claimed: bool) -> None:
    """It is not the record of the topic's ids, which is still to be made."""

    async def script(session: ZooKeeperSession) -> None:
        if claimed:
            await OwnerRegistry(session, PATHS, "range").claim(PARTITION, ConsumerThreadId("g_a", 0), 0x2A)
        else:
            await make_topic(session)
        path = PATHS.claim_record(PARTITION) if claimed else topic("orders")
        await session.set(path, b"?", -1)
        for asked in (identities(session).incarnation, identities(session).known):
            with pytest.raises(ZooKeeperError, match=f"^{path}: "):
                await asked("orders", "A")

    Clients().play(script)


def test_the_topic_is_the_latest_that_the_group_consumed() -> None:
    """A partition that nobody has claimed since the topic was recreated has the earlier one's record."""

    async def script(session: ZooKeeperSession) -> None:
        owners = OwnerRegistry(session, PATHS, "range")
        for partition, incarnation in enumerate((0x9, 0x2A, 0x10)):
            await owners.claim(TopicPartition("orders", partition), ConsumerThreadId("g_a", 0), incarnation)
        assert await identities(session).incarnation("orders", "A") == 0x2A

    Clients().play(script)


def test_readers_know_the_incarnation_that_a_member_would_record_and_record_nothing() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        created = await make_topic(session, topic_id="A")
        assert await identities(session).known("orders", "A") == created
        assert await identities(session).known("orders", "B") is None, "another one than that of the node"
        assert PATHS.root not in clients.ensemble.tree.nodes
        assert await identities(session).incarnation("orders", "A") == created
        before = dict(clients.ensemble.tree.nodes)
        assert (
            await identities(session).known("orders", "A") == await identities(session).known("orders", "") == created
        )
        assert await identities(session).known("orders", "B") is None
        assert clients.ensemble.tree.nodes == before
        second = await identities(session).incarnation("orders", "B")
        assert await identities(session).known("orders", "B") == second
        assert await identities(session).known("orders", "A") is None, "a former one"

    clients.play(script)


def test_members_that_see_a_new_topic_at_once_agree() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        async with clients.session() as other:
            await identities(other).incarnation("bills", "X")  # the container exists
            late = identities(session)
            assert await late.incarnation("orders", "A") == await identities(other).incarnation("orders", "A")

    clients.play(script)


def test_a_member_whose_server_is_behind_knows_a_topic_that_was_just_created() -> None:
    """Else it takes it for a new one, and drops the offsets that others have stored for it."""
    clients = Clients(lag=(0.4, 0.5))

    async def script(session: ZooKeeperSession) -> None:
        content = {"version": 3, "partitions": {"0": [1]}, "topic_id": "A"}
        clients.ensemble.make(topic("orders"), msgspec.json.encode(content))
        created = clients.ensemble.tree.nodes[topic("orders")].czxid
        assert await identities(session).incarnation("orders", "A") == created

    clients.play(script)


def test_a_write_whose_reply_is_lost_records_the_id_once() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        ours = identities(session)
        await ours.incarnation("orders", "A")
        clients.lose_the_next_write(executed=True)
        second = await ours.incarnation("orders", "B")
        assert second == await identities(session).incarnation("orders", "B")
        node = clients.ensemble.tree.nodes[PATHS.topic("orders")]
        assert msgspec.json.decode(node.data)["ids"] == ["A", "B"]

    clients.play(script)


def test_a_record_of_a_newer_version_is_not_overwritten() -> None:
    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(PATHS.topics)
        await session.create(PATHS.topic("orders"), b'{"version":2,"ids":["A"]}')
        with pytest.raises(ZooKeeperError, match="topic record of format 2"):
            await identities(session).incarnation("orders", "A")

    Clients().play(script)
