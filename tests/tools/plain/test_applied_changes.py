"""Changes of a group's nodes are made only while it has no members, each node as it was read; or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext

import pytest

from kzconsumer.errors import NotDoneError
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import AclEntry, Create, Delete
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.groups import group_reader
from kzconsumer_tools.groups.group_reader import apply_changes, make_parents, single
from kzconsumer_tools.node_changes import ChangeProgress, NodeChange
from tests.support.simulated.clients import Clients, Script

GROUP = GroupPaths("g")
OFFSETS = [f"{GROUP.offsets}/t/{number}" for number in range(3)]
OWNER = f"{GROUP.owners}/t/0"
Joins = Callable[[ZooKeeperSession], object]


async def prepared(session: ZooKeeperSession) -> list[NodeChange]:
    """A group with three offsets, which are to be others. Somebody has set the content of its containers."""
    for path in (*OFFSETS, GROUP.ids, OWNER.rpartition("/")[0]):
        await session.ensure(path)
        await session.set(path, b"", -1)
    return [NodeChange(path, await session.find(path), b"%d" % n) for n, path in enumerate(OFFSETS)]


async def stored(session: ZooKeeperSession) -> list[bytes]:
    return [(await session.get(path)).data for path in OFFSETS]


async def applied(
    session: ZooKeeperSession, changes: list[NodeChange], *, topics: Collection[str] = (), with_members: bool = False
) -> None:
    """As commands do it."""
    async with ChangeProgress("node") as progress:
        progress.begin(len(changes))
        await apply_changes(session, GROUP, single(changes), progress, topics=topics, with_members=with_members)


def play(script: Script[None]) -> Clients:
    clients = Clients()
    clients.play(script)
    return clients


@pytest.mark.parametrize(
    ("node", "topics", "with_members", "refused"),
    [
        (f"{GROUP.ids}/g_a", (), False, GROUP.ids),
        (f"{GROUP.ids}/g_a", ("t",), True, None),
        (f"{GROUP.ids}/g_a", (), True, None),
        (OWNER, (), False, None),
        (OWNER, ("t",), False, OWNER.rpartition("/")[0]),
        (OWNER, ("t",), True, OWNER.rpartition("/")[0]),
        (OWNER, ("u",), True, None),
    ],
)
@pytest.mark.parametrize("without_ids", [False, True])
def test_a_member_that_joins_before_the_transaction(
    node: str, topics: tuple[str, ...], with_members: bool, refused: str | None, without_ids: bool
) -> None:
    """A member of ours makes `ids` first, which a group of one that stopped long ago may lack."""

    async def script(session: ZooKeeperSession) -> None:
        changes = await prepared(session)
        if without_ids:
            await session.delete(GROUP.ids, -1)
        multi = session.multi
        joined = False

        async def after_the_join(operations: list[Create]) -> object:
            nonlocal joined
            if not joined:
                joined = True
                await session.ensure(node.rpartition("/")[0])
                await session.create(node, b"x")
            return await multi(operations)

        session.multi = after_the_join  # type: ignore[assignment,method-assign]
        if refused is None:
            await applied(session, changes, topics=topics, with_members=with_members)
            assert await stored(session) == [b"0", b"1", b"2"]
            return
        with pytest.raises(NotDoneError) as raised:
            await applied(session, changes, topics=topics, with_members=with_members)
        reason = f"{refused} is no longer empty: a member has joined; nothing was changed"
        assert str(raised.value) == reason
        assert await stored(session) == [b""] * 3
        assert await session.exists(node) is not None

    play(script)


def test_a_group_that_had_no_nodes_at_all_is_created_with_its_changes() -> None:
    async def script(session: ZooKeeperSession) -> None:
        above = [GROUP.root, GROUP.offsets, f"{GROUP.offsets}/t"]
        changes = [NodeChange(path, None, b"") for path in above] + [NodeChange(OFFSETS[0], None, b"5")]
        await applied(session, changes, topics=["t"])
        assert (await session.get(OFFSETS[0])).data == b"5"
        with pytest.raises(NotDoneError, match=f"{GROUP.root} is not as it was read .*; nothing was changed$"):
            await applied(session, changes)
        assert await session.exists(GROUP.ids) is None, "what proves that there is no member leaves nothing"

    play(script)


def test_missing_parents_are_made_and_those_that_are_created_with_their_children_are_not() -> None:
    async def script(session: ZooKeeperSession) -> None:
        new = NodeChange(OFFSETS[0], None, b"5")
        gone = NodeChange(f"{GROUP.claims}/t/0", None, None)
        await make_parents(
            session, [new, gone, NodeChange("/consumers/h", None, b""), NodeChange("/consumers/h/x", None, b"")]
        )
        assert await session.children(f"{GROUP.offsets}/t") == []
        assert await session.exists(GROUP.claims) is None
        assert await session.exists("/consumers/h") is None

    play(script)


def test_those_that_were_made_before_one_is_refused_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_reader, "UNITS_PER_TRANSACTION", 2)

    async def script(session: ZooKeeperSession) -> None:
        changes = await prepared(session)
        await session.set(OFFSETS[2], b"another", -1)
        with pytest.raises(NotDoneError) as raised:
            await applied(session, changes)
        assert str(raised.value).startswith(f"{OFFSETS[2]} is not as it was read (")
        assert str(raised.value).endswith("); 2 of 3 nodes were changed")
        assert await stored(session) == [b"0", b"1", b"another"]

    play(script)


@pytest.mark.parametrize("executed", [True, False])
def test_what_is_written_again_with_the_same_content_was_written_or_not(executed: bool) -> None:
    """As the offset of a topic that was created again, which counts for the new topic then."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        before = [change.seen for change in await prepared(session)]
        same = [NodeChange(path, seen, seen.data) for path, seen in zip(OFFSETS, before, strict=True) if seen]
        clients.lose_the_next_write(executed=executed)
        with nullcontext() if executed else pytest.raises(NotDoneError, match="nothing was changed"):
            await applied(session, same)
        assert [await session.get(path) == seen for path, seen in zip(OFFSETS, before, strict=True)] == [
            not executed
        ] * 3

    clients.play(script)


@pytest.mark.parametrize("executed", [True, False])
def test_a_transaction_without_a_reply_was_executed_or_not(executed: bool) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        changes = await prepared(session)
        changes[1] = NodeChange(OFFSETS[1], changes[1].seen, None)
        clients.lose_the_next_write(executed=executed)
        if executed:
            await applied(session, changes)
        else:
            with pytest.raises(NotDoneError, match=r"broke; try again \(.*\); nothing was changed$"):
                await applied(session, changes)
        assert [await session.exists(path) is not None for path in OFFSETS] == [True, not executed, True]
        assert (await session.get(OFFSETS[2])).data == (b"2" if executed else b"")

    clients.play(script)


OWN = (AclEntry(31, "digest", "orders:6DY5WhzOfGsWQ1XFuIyzxkpwdPo="), AclEntry(1, "world", "anyone"))


@pytest.mark.parametrize("hidden", [False, True])
def test_containers_keep_their_acl(hidden: bool) -> None:
    """Whatever the tool's own settings say. One that this user may not read whole is not replaced."""

    async def script(session: ZooKeeperSession) -> None:
        changes = await prepared(session)
        acl = (OWN[0]._replace(user="orders:x"),) if hidden else OWN  # as servers show it
        containers = [GROUP.ids, OWNER.rpartition("/")[0]]
        for path in containers:
            await session.multi([Delete(path, -1), Create(path, b"", acl=acl)])
        if hidden:
            with pytest.raises(NotDoneError, match=r"/ids: not permitted: .*; nothing was changed$"):
                await applied(session, changes, topics=["t"])
            assert await stored(session) == [b""] * 3
        else:
            await applied(session, changes, topics=["t"])
            assert await stored(session) == [b"0", b"1", b"2"]
            assert [await session.acl(path) for path in containers] == [OWN, OWN]

    play(script)
