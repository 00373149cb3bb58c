"""Claims, moves and releases of owner nodes whose outcome is in doubt: lost replies, and nodes that others change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import NotPermittedError, TopicChangedError
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.claim_record import Blocked, Claimed, ClaimRecord, ClaimRefused, Fence, encode_claim_record
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.node_topics import NodeTopics
from kzconsumer.registry.paths import BROKER_TOPICS, GroupPaths, topic
from kzconsumer.zookeeper.operations import Create, Delete, Operation, SetData, Stat
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, repeated
from tests.support.plans import plan_of
from tests.support.simulated.clients import Clients

PATHS = GroupPaths("g")
PARTITION = TopicPartition("orders", 0)
OWNER, RECORD, OFFSET = PATHS.owner(PARTITION), PATHS.claim_record(PARTITION), PATHS.offset(PARTITION)
CONTAINER = RECORD.rpartition("/")[0]
FIRST, SECOND = ConsumerThreadId("g_a", 0), ConsumerThreadId("g_a", 1)

EXECUTED = pytest.mark.parametrize("executed", [True, False], ids=["reply lost", "request lost"])


def registry(session: ZooKeeperSession) -> OwnerRegistry:
    return OwnerRegistry(session, PATHS, "range")


async def claim(owners: OwnerRegistry, thread: ConsumerThreadId) -> Fence:
    claimed = await owners.claim(PARTITION, thread, 0x2A)
    assert isinstance(claimed, Claimed)
    return claimed.fence


def holds(clients: Clients, fence: Fence, thread: ConsumerThreadId) -> bool:
    """Whether the partition is this thread's, and its owner knows the versions."""
    nodes = clients.ensemble.tree.nodes
    owner, record = nodes.get(OWNER), nodes[RECORD]
    return owner is not None and (owner.data, owner.version, record.version) == (
        str(thread).encode(),
        fence.owner.version,
        fence.record_version,
    )


@EXECUTED
def test_a_claim_whose_reply_is_lost_is_held_by_the_thread_that_asked(executed: bool) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> Fence:
        owners = registry(session)
        await owners.release(await claim(owners, FIRST))  # afterwards there are containers and a record
        clients.lose_the_next_write(executed=executed)
        fence = await claim(owners, SECOND)
        assert holds(clients, fence, SECOND)
        return fence

    clients.play(script)


@EXECUTED
def test_a_claim_over_our_own_node_of_another_thread_changes_it(executed: bool) -> None:
    """The node is of a claim that was cancelled on its way, and executed all the same."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await claim(owners, FIRST)
        clients.lose_the_next_write(executed=executed)
        assert holds(clients, await claim(owners, SECOND), SECOND)

    clients.play(script)


@EXECUTED
def test_a_change_of_thread_whose_reply_is_lost_is_made_once(executed: bool) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        fence = await claim(owners, FIRST)
        clients.lose_the_next_write(executed=executed)
        assert holds(clients, await owners.change_thread(fence, SECOND), SECOND)
        assert clients.ensemble.tree.nodes[OWNER].version == fence.owner.version + 1

    clients.play(script)


@EXECUTED
def test_a_release_whose_reply_is_lost_leaves_no_node(executed: bool) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        fence = await claim(owners, FIRST)
        clients.lose_the_next_write(executed=executed)
        assert await owners.release(fence)
        assert OWNER not in clients.ensemble.tree.nodes

    clients.play(script)


def test_what_a_server_has_not_heard_of_yet_is_no_answer_after_a_lost_reply() -> None:
    """The next server may lag behind the one that has executed the write."""
    clients = Clients(lag=(0.4, 0.8))

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        fence = await claim(owners, FIRST)
        clients.lose_the_next_write(executed=True)
        fence = await owners.change_thread(fence, SECOND)
        assert fence.owner.version == clients.ensemble.tree.nodes[OWNER].version
        clients.lose_the_next_write(executed=True)
        assert await owners.release(fence), "it is released, and not lost to another member"

    clients.play(script)


def test_a_record_that_changes_between_look_and_claim_is_read_again() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await owners.release(await claim(owners, FIRST))
        record = clients.ensemble.tree.nodes[RECORD].data
        before_the_next_write(session, lambda: clients.ensemble.operate(SetData(RECORD, record, -1)))
        assert holds(clients, await claim(owners, SECOND), SECOND)

    clients.play(script)


@EXECUTED
def test_a_node_that_is_abandoned_while_a_reply_is_lost_goes(executed: bool) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await claim(owners, FIRST)
        clients.lose_the_next_write(executed=executed)
        await owners.abandon(PARTITION)
        assert OWNER not in clients.ensemble.tree.nodes

    clients.play(script)


@pytest.mark.parametrize("path", [OWNER, RECORD], ids=["owner", "record"])
def test_a_node_that_changes_while_it_is_abandoned_goes_all_the_same(path: str) -> None:
    """A write of ours that was given up is executed between the reads and the release."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await claim(owners, FIRST)
        data = clients.ensemble.tree.nodes[path].data
        before_the_next_write(session, lambda: clients.ensemble.operate(SetData(path, data, -1)))
        await owners.abandon(PARTITION)
        assert OWNER not in clients.ensemble.tree.nodes

    clients.play(script)


GONE = pytest.mark.parametrize("gone", [(RECORD,), (RECORD, CONTAINER)], ids=["record", "container"])
"""What an operator deletes under an owner node, as `deleteall` of ZooKeeper's shell does on its way."""


@GONE
@EXECUTED
def test_a_node_without_claim_record_is_abandoned(gone: tuple[str, ...], executed: bool) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        fence = await claim(owners, FIRST)
        clients.ensemble.operate(*(Delete(path, -1) for path in gone))
        assert not await owners.release(fence)
        clients.lose_the_next_write(executed=executed)
        await owners.abandon(PARTITION)
        assert clients.ensemble.tree.nodes.keys().isdisjoint((OWNER, RECORD))

    clients.play(script)


@GONE
def test_a_node_without_claim_record_does_not_keep_us_from_claiming(gone: tuple[str, ...]) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await claim(owners, FIRST)
        clients.ensemble.operate(*(Delete(path, -1) for path in gone))
        assert holds(clients, await claim(owners, SECOND), SECOND)

    clients.play(script)


def test_a_node_without_claim_record_that_is_another_sessions_by_now_stays() -> None:
    """It has the same version as ours had. Only the claim record shows that another session has claimed."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await claim(owners, FIRST)
        clients.ensemble.operate(Delete(RECORD, -1))
        async with clients.session() as other:

            def another_claims() -> None:
                made = Create(OWNER, b"g_b-0", ephemeral=True), SetData(OWNER, b"g_b-0", 0), Create(RECORD, b"{}")
                clients.ensemble.transact(other.id, [Delete(OWNER, -1), *made])

            before_the_next_write(session, another_claims)
            await owners.abandon(PARTITION)
            assert clients.ensemble.tree.node(OWNER).owner == other.id

    clients.play(script)


@pytest.mark.parametrize("recorded", [True, False], ids=["record", "no record"])
def test_a_node_that_may_not_be_deleted_is_an_error(recorded: bool) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await claim(owners, FIRST)
        if not recorded:
            clients.ensemble.operate(Delete(RECORD, -1))
        clients.ensemble.closed[OWNER.rpartition("/")[0]] = "d"
        with pytest.raises(NotPermittedError):
            await owners.abandon(PARTITION)

    clients.play(script)


def test_counts_that_another_connection_has_answered_are_not_taken_for_those_of_the_former() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await claim(owners, FIRST)
        counts = partial(owners.counts, PARTITION.topic)
        assert await counts() is not None
        clients.network.cut(clients.process, arrives=False)
        assert await repeated(counts) is None
        assert await counts() is not None

    clients.play(script)


def test_a_partition_of_another_session_is_blocked() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        async with clients.session() as other:
            await claim(registry(other), SECOND)
            blocked = await registry(session).claim(PARTITION, FIRST, 0x2A)
            assert blocked == Blocked(OWNER, str(SECOND), other.id)

    clients.play(script)


def test_the_node_of_another_session_is_not_abandoned_and_not_ours() -> None:
    """At the same version: every claim of ours leaves its owner node at version 1."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        fence = await claim(owners, FIRST)
        assert owners.is_ours(await owners.stat(fence.owner), fence.owner)
        clients.ensemble.operate(Delete(OWNER, -1))
        async with clients.session() as other:
            theirs = await claim(registry(other), ConsumerThreadId("g_b", 0))
            assert theirs.owner == fence.owner
            await session.sync()
            assert not owners.is_ours(await owners.stat(fence.owner), fence.owner)
            await owners.abandon(PARTITION)
            assert OWNER in clients.ensemble.tree.nodes

    clients.play(script)


@pytest.mark.parametrize("changed", [False, True], ids=["unchanged", "changed"])
def test_a_release_deletes_the_stored_offset_with_the_node_unless_it_was_changed(changed: bool) -> None:
    """The node goes in either case: the next owner waits for it."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        fence = await claim(owners, FIRST)
        clients.ensemble.operate(Create(OFFSET, b"7"))
        withdrawn = Delete(OFFSET, clients.ensemble.tree.nodes[OFFSET].version)
        if changed:
            clients.ensemble.operate(SetData(OFFSET, b"9", -1))
        assert await owners.release(fence, withdrawn)
        assert OWNER not in clients.ensemble.tree.nodes
        assert clients.ensemble.tree.data(OFFSET) == (b"9" if changed else None)

    clients.play(script)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b'{"version":2}', "not a claim record"),
        (
            encode_claim_record(ClaimRecord(1, "range", "0x2a", 0, "f", plan_of(5, 9, isolation="read_uncommitted"))),
            'set [fetch] isolation = "read_uncommitted" until they are written',
        ),
        (
            encode_claim_record(ClaimRecord(1, "range", "0x2a", 0, "g", plan_of(5, 9, fingerprint="g"))),
            "are planned for another destination (g), ours is f",
        ),
    ],
    ids=["another version", "another isolation", "another destination"],
)
def test_a_partition_that_this_member_must_not_consume_is_refused_and_left_as_it_is(record: bytes, reason: str) -> None:
    clients = Clients()
    clients.ensemble.make(RECORD, record)

    async def script(session: ZooKeeperSession) -> Claimed | Blocked | ClaimRefused:
        owners = OwnerRegistry(session, PATHS, "range", "f", "read_committed")
        return await owners.claim(PARTITION, FIRST, 0x2A)

    refused = clients.play(script)
    assert isinstance(refused, ClaimRefused)
    assert refused.path == RECORD
    assert reason in refused.reason
    assert OWNER not in clients.ensemble.tree.nodes
    assert clients.ensemble.tree.data(RECORD) == record


@pytest.mark.parametrize("claimed_before", [False, True], ids=["first member of ours", "claimed before"])
@pytest.mark.parametrize("written_since", [False, True], ids=["stored before", "stored since"])
def test_an_offset_from_before_the_topic_was_created_is_of_an_earlier_topic(
    written_since: bool, claimed_before: bool
) -> None:
    """One that was stored since is an original member's, which does not know claim records."""
    clients = Clients()
    ensemble = clients.ensemble
    if claimed_before:
        ensemble.make(RECORD, encode_claim_record(ClaimRecord(1, "range", "0x1")))
    ensemble.make(OFFSET, b"70")
    ensemble.make(topic(PARTITION.topic))
    if written_since:
        ensemble.operate(SetData(OFFSET, b"7", -1))
    created = ensemble.tree.nodes[topic(PARTITION.topic)].czxid

    async def script(session: ZooKeeperSession) -> Claimed:
        claimed = await registry(session).claim(PARTITION, FIRST, created)
        assert isinstance(claimed, Claimed)
        return claimed

    claimed = clients.play(script)
    assert claimed.stored == (7 if written_since else None)
    assert (OFFSET in ensemble.tree.nodes) == written_since
    assert (claimed.record.incarnation, claimed.record.epoch) == (f"{created:#x}", claimed_before)


@pytest.mark.parametrize("of_ours", ["position", "mark", None])
def test_an_offset_that_was_stored_late_is_of_the_earlier_topic(of_ours: str | None) -> None:
    """Its member did not know yet that the topic had been created again, and died before it could delete it."""
    clients = Clients()
    ensemble = clients.ensemble
    record = ClaimRecord(1, "range", "0x1")
    if of_ours == "mark":
        record = ClaimRecord(1, "range", "0x1", fingerprint="f").after(7, None, 0)
    elif of_ours == "position":
        record = record.after(7, None, 0, leader_epoch=3)
    ensemble.make(topic(PARTITION.topic))
    ensemble.make(RECORD, encode_claim_record(record))
    ensemble.make(OFFSET, b"7")
    created = ensemble.tree.nodes[topic(PARTITION.topic)].czxid

    async def script(session: ZooKeeperSession) -> Claimed:
        claimed = await registry(session).claim(PARTITION, FIRST, created)
        assert isinstance(claimed, Claimed)
        return claimed

    assert clients.play(script).stored == (7 if of_ours is None else None)


@EXECUTED
def test_our_own_node_of_a_claim_of_the_earlier_topic_is_not_one_of_the_present_topic(executed: bool) -> None:
    """The earlier claim was lost when the topic was found to be another one, and nothing has swept its node yet."""
    clients = Clients()
    ensemble = clients.ensemble

    def make_topic() -> int:
        ensemble.make(topic(PARTITION.topic))
        return ensemble.tree.nodes[topic(PARTITION.topic)].czxid

    async def script(session: ZooKeeperSession) -> tuple[Claimed, int]:
        owners = registry(session)
        before = await owners.claim(PARTITION, FIRST, make_topic())
        assert isinstance(before, Claimed)
        ensemble.make(OFFSET, b"28")
        ensemble.operate(Delete(topic(PARTITION.topic), -1))
        created = make_topic()
        await session.sync()
        clients.lose_the_next_write(executed=executed)
        claimed = await owners.claim(PARTITION, SECOND, created)
        assert isinstance(claimed, Claimed)
        assert holds(clients, claimed.fence, SECOND)
        return claimed, created

    claimed, created = clients.play(script)
    assert claimed.stored is None
    assert OFFSET not in ensemble.tree.nodes
    assert encode_claim_record(claimed.record) == ensemble.tree.data(RECORD)
    assert (claimed.record.incarnation, claimed.record.epoch) == (f"{created:#x}", 1)


@pytest.mark.parametrize("deleted", [False, True], ids=["recreated", "deleted"])
def test_a_claim_of_an_earlier_topic_does_not_replace_the_record_of_a_later_one(deleted: bool) -> None:
    """Its plan is of a range of the later topic, which that topic's next owner has to finish."""
    clients = Clients()
    ensemble = clients.ensemble
    ensemble.make(topic(PARTITION.topic))
    created = ensemble.tree.nodes[topic(PARTITION.topic)].czxid
    record = encode_claim_record(ClaimRecord(1, "range", f"{created:#x}"))
    ensemble.make(RECORD, record)
    if deleted:
        ensemble.operate(Delete(topic(PARTITION.topic), -1))

    async def script(session: ZooKeeperSession) -> None:
        with pytest.raises(TopicChangedError):
            await registry(session).claim(PARTITION, FIRST, created - 1)

    clients.play(script)
    assert OWNER not in ensemble.tree.nodes
    assert ensemble.tree.data(RECORD) == record


def before_the_next_write(session: ZooKeeperSession, happens: Callable[[], None]) -> None:
    multi = session.multi

    async def later(operations: Sequence[Operation]) -> list[Stat | None]:
        session.multi = multi  # type: ignore[method-assign]
        happens()
        return await multi(operations)

    session.multi = later  # type: ignore[method-assign]


@pytest.mark.parametrize(("content", "offset"), [(b"12", 12), (b"-1", None), (b"?", None), (b"", None)])
def test_an_unreadable_offset_is_none_and_its_version_counts(content: bytes, offset: int | None) -> None:
    """The next commit replaces what was read, and nothing that was stored since."""

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await owners.release(await claim(owners, FIRST))
        await session.create(OFFSET, b"1")
        stat = await session.set(OFFSET, content, -1)
        with capture_logs() as logs:
            claimed = await owners.claim(PARTITION, FIRST, 0x2A)
        assert isinstance(claimed, Claimed)
        assert (claimed.stored, claimed.stored_version) == (offset, stat.version)
        unreadable = [each for each in logs if each["event"] == "stored offset is unreadable, treating it as missing"]
        assert [each["path"] for each in unreadable] == [OFFSET] * (content not in (b"12", b"-1"))

    Clients().play(script)


def test_partitions_with_an_owner_node_are_those_of_topics_that_were_claimed() -> None:
    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        others = [TopicPartition("payments", number) for number in (0, 2)]
        for each in (PARTITION, *others):
            assert isinstance(await owners.claim(each, FIRST, 0x2A), Claimed)
        await session.create(f"{PATHS.containers('payments')[0]}/lock")  # of another program
        assert await owners.owned(["payments", "unclaimed"]) == set(others)
        assert await owners.owned(["orders", "payments"]) == {PARTITION, *others}

    Clients().play(script)


def test_containers_of_many_topics_are_made_at_once() -> None:
    clients = Clients()
    partitions = [TopicPartition(f"t{number}", 0) for number in range(20)]

    async def script(session: ZooKeeperSession) -> int:
        owners, other = registry(session), registry(session)
        before = len(clients.ensemble.log)
        for each in (owners, owners, other):
            await each.prepare(partition.topic for partition in partitions)
        made = len(clients.ensemble.log) - before
        for partition in partitions:
            assert isinstance(await owners.claim(partition, FIRST, 0x2A), Claimed)
        assert len(clients.ensemble.log) == before + made + len(partitions), "a claim was refused"
        return made

    assert clients.play(script) < len(partitions)


def test_containers_that_another_member_has_begun_to_make_are_completed() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        owners = registry(session)
        await session.ensure(PATHS.containers("orders")[0])
        await owners.prepare(["orders", "payments"])
        for partition in (PARTITION, TopicPartition("payments", 0)):
            assert isinstance(await owners.claim(partition, FIRST, 0x2A), Claimed)

    clients.play(script)


def test_topics_that_were_created_again_are_found_without_asking_about_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each batch of a replayable sink, perhaps of thousands of topics: to read all their nodes takes long."""
    clients, names = Clients(), [f"t{number}" for number in range(20)]
    ensemble = clients.ensemble
    for name in names:
        ensemble.make(topic(name))

    def now() -> dict[str, int]:
        nodes = {name: ensemble.tree.nodes.get(topic(name)) for name in names}
        return {name: node.czxid for name, node in nodes.items() if node is not None}

    async def script(session: ZooKeeperSession) -> None:
        topics, asked, exists = NodeTopics(session, Watches(session)), list[str](), session.exists

        async def noted(path: str) -> Stat | None:
            asked.append(path)
            return await exists(path)

        monkeypatch.setattr(session, "exists", noted)
        assert await topics.incarnations(names[:10]) == {name: now()[name] for name in names[:10]}
        assert await topics.incarnations(names) == now()
        asked.clear()
        assert await topics.incarnations(names) == now()
        assert asked == [BROKER_TOPICS]
        for change in ([Delete(topic("t3"), -1), Create(topic("t3"), b"")], [Delete(topic("t5"), -1)]):
            ensemble.operate(*change)
            await session.sync()
            assert await topics.incarnations(names) == now()
        for reconnects_before in (False, True):  # the next server may be one that was restored from a copy
            clients.network.cut(clients.process, arrives=True)
            if reconnects_before:
                await repeated(session.sync)
            asked.clear()
            assert await repeated(lambda: topics.incarnations(names)) == now()
            assert {topic(name) for name in names} <= set(asked)

    clients.play(script)


def test_a_server_that_lags_behind_says_what_topics_are_there_now() -> None:
    clients = Clients(lag=(0.4, 0.8))
    path, tree = topic(PARTITION.topic), clients.ensemble.tree
    clients.ensemble.make(path)

    async def script(session: ZooKeeperSession) -> dict[str, int]:
        owners = registry(session)
        before = await owners.present([PARTITION.topic])
        clients.ensemble.operate(Delete(path, -1), Create(path, b""))
        assert await owners.incarnations([PARTITION.topic]) == before, "it does not lag behind"
        return await owners.present([PARTITION.topic])

    assert clients.play(script) == {PARTITION.topic: tree.nodes[path].czxid}
