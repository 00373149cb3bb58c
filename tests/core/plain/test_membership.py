"""Joining while another session has the consumer id."""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer.group.membership import PATIENCE, ConsumerRegistry, Membership
from kzconsumer.registry.group_records import Registration
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.session import ZooKeeperSession
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
