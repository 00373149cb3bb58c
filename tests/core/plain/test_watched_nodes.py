"""What `Watches` returns is what the node is, whenever it changes: before a request, during it, or after the reply."""

from __future__ import annotations

import anyio
import pytest

from kzconsumer.registry.paths import CONSUMERS
from kzconsumer.zookeeper.operations import Create, Delete, Operation, SetData
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches
from tests.support.simulated.clients import Clients

PATH = f"{CONSUMERS}/node"
LONGEST = 0.01
"""Seconds: a few times what a request takes. The event may arrive together with the reply that does not show it."""


@pytest.mark.parametrize("kind", ["data", "each data", "blocking", "exists", "children"])
def test_a_change_at_any_moment_is_seen(kind: str) -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        notified: list[str] = []
        watches = Watches(session, notified.append)
        for number in range(200):
            watches.reread()
            change: Operation
            match (kind, number % 4):
                case ("children", _):
                    change = Create(f"{PATH}/{number}", b"") if number else Create(PATH, b"")
                case ("exists", 0 | 2) | (_, 0):
                    change = Create(PATH, b"0")
                case ("exists", _) | (_, 3):
                    change = Delete(PATH, -1)
                case _:
                    change = SetData(PATH, b"%d" % number, -1)
            after = clients.world.random.uniform(0, LONGEST)
            clients.world.after(after, lambda change=change: clients.ensemble.operate(change))  # type: ignore[misc]
            before = len(notified)
            seen = [await present(watches)]
            await anyio.sleep(0.1)
            seen.append(await present(watches))
            assert seen[1] == in_tree(), f"changed {after:.5f} s after the request"
            assert seen[0] == seen[1] or len(notified) > before, "nothing reported the change"

    async def present(watches: Watches) -> object:
        match kind:
            case "children":
                return await watches.children(PATH, "")
            case "exists":
                return await watches.exists(PATH, "") is not None
            case "each data":
                (node,) = await watches.each_data({PATH: ""})
            case "data":
                node = await watches.data(PATH, "")
            case _:
                node = await watches.blocking(PATH, "")
        return node and node.data

    def in_tree() -> object:
        node = clients.ensemble.tree.nodes.get(PATH)
        if kind == "children":
            return sorted(node.children) if node else []
        return node is not None if kind == "exists" else node and node.data

    clients.play(script)


def test_only_the_last_guard_of_a_node_is_called() -> None:
    """A partition that is claimed again has the same node: the end of the former guard must not end this one."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        called: list[str] = []
        watches = Watches(session, called.append)
        clients.ensemble.operate(Create(PATH, b""))
        await anyio.sleep(0.1)
        for number in range(3):
            await watches.guard(PATH, lambda number=number: called.append(f"guard {number}"))  # type: ignore[misc]
        clients.ensemble.operate(SetData(PATH, b"1", -1))
        await anyio.sleep(0.1)
        assert called == ["guard 2"]
        await watches.guard(PATH, lambda: called.append("guard 3"))
        watches.unguard(PATH)
        clients.ensemble.operate(SetData(PATH, b"2", -1))
        await anyio.sleep(0.1)
        assert called == ["guard 2"]

    clients.play(script)
