"""An unreadable registration, and owner nodes that do not expire."""

from __future__ import annotations

import anyio
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.members import reader, settings
from tests.support.zookeeper_sessions import session, until


@pytest.mark.parametrize(
    ("policy", "registration"),
    [("wait", b"t1"), ("ignore", b"t1"), ("ignore", b'{"subscription":{"(":1},"pattern":"white_list"}')],
)
async def test_an_unreadable_registration(
    cluster: Cluster, unique: str, policy: str, registration: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """By default nothing changes until it leaves: what is owned stays owned, and it is reported once."""
    await create_topic(cluster.connect, unique, 4)
    configured = settings(cluster.connect, unique, group={"id": unique, "unreadable_members": policy})
    async with session(cluster.connect) as other, reader(configured, {unique: 1}) as first:
        await other.create(f"/consumers/{unique}/ids/{unique}_poison", registration, ephemeral=True)
        if policy == "ignore":
            async with reader(configured, {unique: 1}) as second:
                await until(lambda: len(first.owned) == len(second.owned) == 2)
            return
        # The newcomer has to wait, and so does the rebalance that would give it partitions.
        with anyio.move_on_after(2.0) as scope:
            async with reader(configured, {unique: 1}):
                pass
        assert scope.cancelled_caught
        assert len(first.owned) == 4
        output = [line for line in "".join(capfd.readouterr()).splitlines() if "registration unreadable" in line]
        assert any(f"/consumers/{unique}/ids/{unique}_poison" in line and "not JSON" in line for line in output)
        assert len(output) <= 2, "once by each member"
        await other.delete(f"/consumers/{unique}/ids/{unique}_poison", -1)
        async with reader(configured, {unique: 1}) as second:
            await until(lambda: len(first.owned) == len(second.owned) == 2)
