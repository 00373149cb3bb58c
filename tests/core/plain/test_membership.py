"""Joining while another session has the consumer id, and a group with members that nobody can read."""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import GroupUnreadableError
from kzconsumer.group.membership import PATIENCE, ConsumerRegistry, Membership, SnapshotReader
from kzconsumer.registry.group_records import Registration
from kzconsumer.registry.node_topics import NodeTopics
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Create, Delete, Stat
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watch_table import Watch
from kzconsumer.zookeeper.watches import Watches
from tests.support.simulated.clients import Clients

PATHS = GroupPaths("g")
SECONDS = PATIENCE * 6.0


def member(session: ZooKeeperSession) -> Membership:
    consumers = ConsumerRegistry(session, Watches(session), PATHS)
    return Membership(session, consumers, PATHS, "g_x", Registration.of_topics({"t": 1}))


@pytest.mark.parametrize(
    ("held", "lasts", "levels"),
    [
        ("session", SECONDS - 4.0, ["info"]),  # it ends in time, as after a crash
        ("session", SECONDS + 4.0, ["info", "error"]),
        ("nobody", 4.0, ["info", "error"]),
    ],
)
def test_a_consumer_id_that_does_not_get_free_is_an_error(held: str, lasts: float, levels: list[str]) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(PATHS.ids)
        async with clients.session() as other:
            await other.create(PATHS.member("g_x"), b"", ephemeral=held == "session")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(member(session).join)
                await anyio.sleep(lasts)
                await other.delete(PATHS.member("g_x"), -1)
        registered = await session.get(PATHS.member("g_x"))
        assert registered.stat.ephemeral_owner == session.id

    with capture_logs() as logs:
        clients.play(script)
    said = [each for each in logs if str(each["event"]).startswith("consumer id")]
    assert [each["log_level"] for each in said] == levels
    if levels[1:]:
        way_out = "must be unique, leave it out" if held == "session" else "`kzconsumer groups clean g` removes it"
        assert way_out in said[1]["reason"]
        assert said[1]["about"] == PATHS.member("g_x")


def test_a_group_whose_nodes_are_deleted_as_a_member_registers_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        ensure = session.ensure

        async def deleted_then(path: str) -> None:
            await ensure(path)
            monkeypatch.undo()
            clients.ensemble.operate(Delete(path, -1))

        monkeypatch.setattr(session, "ensure", deleted_then)
        await member(session).join()
        assert (await session.get(PATHS.member("g_x"))).stat.ephemeral_owner == session.id

    clients.play(script)


def test_a_consumer_id_that_gets_free_as_it_is_looked_at_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clients, path = Clients(), PATHS.member("g_x")

    async def script(session: ZooKeeperSession) -> None:
        await session.ensure(PATHS.ids)
        clients.ensemble.operate(Create(path, b""))
        watch_exists = session.watch_exists

        async def goes_first(path: str) -> tuple[Stat | None, Watch]:
            clients.ensemble.operate(Delete(path, -1))
            await session.sync()
            return await watch_exists(path)

        monkeypatch.setattr(session, "watch_exists", goes_first)
        with anyio.fail_after(1):
            await member(session).join()
        assert (await session.get(path)).stat.ephemeral_owner == session.id

    clients.play(script)


@pytest.mark.parametrize("content", [b"?", b'{"version":1,"pattern":"white_list","subscription":{"(a":1}}'])
def test_an_unreadable_registration_stops_the_group_unless_it_is_ignored(content: bytes) -> None:
    """Then it is reported once, however often it is read, and its member counts for nothing."""

    async def script(session: ZooKeeperSession) -> None:
        await member(session).join()
        await session.create(PATHS.member("g_y"), content)
        watches = Watches(session)
        consumers, topics = ConsumerRegistry(session, watches, PATHS), NodeTopics(session, watches)
        strict = SnapshotReader(consumers, topics, watches, PATHS, ignore_unreadable=False)
        with pytest.raises(GroupUnreadableError, match=PATHS.member("g_y")):
            await strict.members()
        lenient = SnapshotReader(consumers, topics, watches, PATHS, ignore_unreadable=True)
        with capture_logs() as logs:
            for _ in range(3):
                assert await lenient.members() == {"g_x": Registration.of_topics({"t": 1})}
        assert [(each["event"], each["about"]) for each in logs] == [
            ("member registration unreadable, ignored", PATHS.member("g_y"))
        ]

    Clients().play(script)
