"""The state of the demo at one moment: owners and offsets in ZooKeeper, members' logs, the producer, files counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
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


class MemberState(Enum):
    """The state of a member, as it is displayed."""

    STARTING = "starting Spark"
    JOINING = "joining"
    CONSUMING = "consuming"
    KILLED = "killed with kill -9"
    STOPPING = "stopping"
    STOPPED = "stopped, exit status 0"


class MemberRow(msgspec.Struct, frozen=True):
    """A member; `owns` is its number of partitions in ZooKeeper."""

    name: str
    pid: int
    state: MemberState
    owns: int


class PartitionRow(msgspec.Struct, frozen=True):
    """A partition; offsets are next offsets, and so numbers of records. None: unknown."""

    partition: int
    owner: str | None
    produced: int
    fetched: int | None
    consumed: int | None
    committed: int

    @property
    def lag(self) -> int:
        """Records in the log that the group has not committed."""
        return max(0, self.produced - self.committed)


class Board(msgspec.Struct, frozen=True):
    """`messages` is the number of messages to be produced."""

    messages: int
    partitions: tuple[PartitionRow, ...] = ()
    members: tuple[MemberRow, ...] = ()

    @property
    def produced(self) -> int:
        return sum(row.produced for row in self.partitions)

    @property
    def committed(self) -> int:
        return sum(row.committed for row in self.partitions)

    @property
    def owned(self) -> int:
        return sum(row.owner is not None for row in self.partitions)

    def owned_by(self, name: str) -> frozenset[int]:
        return frozenset(row.partition for row in self.partitions if row.owner == name)


class Reported(msgspec.Struct, frozen=True):
    """A partition as an owner reports it in its log."""

    topic: str
    partition: int
    fetched: int | None
    consumed: int


def partition_rows(
    produced: Sequence[int],
    owners: Mapping[int, str],
    committed: Mapping[int, int],
    reported: Mapping[str, Mapping[int, Reported]],
) -> tuple[PartitionRow, ...]:
    """A row for each partition. Fetched and consumed offsets are those that its owner in ZooKeeper reports."""
    rows = []
    for partition, count in enumerate(produced):
        owner = owners.get(partition)
        seen = reported.get(owner, {}).get(partition) if owner is not None else None
        rows.append(
            PartitionRow(
                partition=partition,
                owner=owner,
                produced=count,
                fetched=seen.fetched if seen else None,
                consumed=seen.consumed if seen else None,
                committed=committed.get(partition, 0),
            )
        )
    return tuple(rows)


# The Parquet files are counted with Arrow: what has not written them reads them.


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
