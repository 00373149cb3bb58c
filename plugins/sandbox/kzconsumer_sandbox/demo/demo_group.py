"""The owners and offsets of the demo's group in ZooKeeper, and waiting until others have taken partitions over."""

from __future__ import annotations

import anyio

from kzconsumer.model import TopicPartition
from kzconsumer.registry.nodes import decode_offset
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.sandbox_errors import DemoFailed


def member_name(group: str, owner: str) -> str:
    """`member-1` of the owner node's `<group>_member-1-0`: consumer id and thread."""
    return owner.removeprefix(f"{group}_").rpartition("-")[0]


class DemoGroup:
    """Reads one topic's nodes of one group, all partitions at once."""

    def __init__(self, session: ZooKeeperSession, group: str, topic: str, partitions: int) -> None:
        self._session = session
        self._group = group
        paths = GroupPaths(group)
        every = [TopicPartition(topic, partition) for partition in range(partitions)]
        self._owners = [paths.owner(partition) for partition in every]
        self._offsets = [paths.offset(partition) for partition in every]

    async def owners(self) -> dict[int, str]:
        """Partition -> name of the member that owns it; unowned partitions are left out."""
        found = await self._read(self._owners)
        return {partition: member_name(self._group, data.decode()) for partition, data in found.items()}

    async def committed(self) -> dict[int, int]:
        """Partition -> committed offset, if one is stored."""
        found = {partition: decode_offset(data) for partition, data in (await self._read(self._offsets)).items()}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    async def taken_over(self, partitions: frozenset[int], dead: str, limit: float) -> None:
        """Wait until other members own all of these, polling every 50 ms. Raises DemoFailed after `limit` seconds."""
        with anyio.move_on_after(limit):
            while True:
                owners = await self.owners()
                if all(owners.get(partition, dead) != dead for partition in partitions):
                    return
                await anyio.sleep(0.05)
        raise DemoFailed(f"the partitions of {dead} are not owned by others after {limit:.0f} s")

    async def _read(self, paths: list[str]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}

        async def read(number: int, path: str) -> None:
            node = await self._session.find(path)
            if node is not None:
                found[number] = node.data

        async with anyio.create_task_group() as tasks:
            for number, path in enumerate(paths):
                tasks.start_soon(read, number, path)
        return found
