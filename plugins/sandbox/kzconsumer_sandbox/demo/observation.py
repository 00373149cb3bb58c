"""What the demo finds out without asking its members: owners and offsets in ZooKeeper, messages in the Parquet files.

The files are read with Arrow, which has not written them.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from anyio import to_thread
from pyarrow import dataset

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


class Counted(msgspec.Struct, frozen=True):
    """`rows` in the files, `distinct` messages in them, `elsewhere`: messages at more than one offset."""

    rows: int
    distinct: int
    elsewhere: int


class _Message(msgspec.Struct):
    id: int


_DECODER = msgspec.json.Decoder(_Message)


async def count(path: Path, messages: int) -> Counted:
    """Count the Parquet files under `path`, of which messages 0 to `messages` - 1 are counted. Raises DemoFailed."""
    try:
        return await to_thread.run_sync(_count, path, messages)
    except (OSError, pa.ArrowException) as error:
        raise DemoFailed(f"the Parquet files in {path} could not be read: {error}") from error


def _count(path: Path, messages: int) -> Counted:
    files = dataset.dataset(path, format="parquet")
    batches = [_numbered(batch, messages) for batch in files.to_batches(columns=["value", "partition", "offset"])]
    found = pa.Table.from_batches(batches, _SCHEMA)
    messages_found = found.drop_null().group_by("id")
    places = messages_found.aggregate([(column, edge) for column in ("partition", "offset") for edge in ("min", "max")])
    moved = [pc.not_equal(places[f"{column}_min"], places[f"{column}_max"]) for column in ("partition", "offset")]
    return Counted(found.num_rows, places.num_rows, places.filter(pc.or_(*moved)).num_rows)


_SCHEMA = pa.schema({"id": pa.int64(), "partition": pa.int32(), "offset": pa.int64()})


def _numbered(batch: pa.RecordBatch, messages: int) -> pa.RecordBatch:
    numbers = [_number(value, messages) for value in batch["value"].to_pylist()]
    return pa.record_batch([numbers, batch["partition"], batch["offset"]], schema=_SCHEMA)


def _number(value: bytes | None, messages: int) -> int | None:
    """None: no message of the demo."""
    try:
        number = _DECODER.decode(value or b"").id
    except msgspec.MsgspecError:
        return None
    return number if 0 <= number < messages else None
