"""What becomes of a batch that stays corrupt: `[fetch] on_corrupt`.

Owns the quarantine directory. The BrokerFetcher asks it once a way over the batch has been found. A loss is always told
as an error with its offsets; what goes into quarantine is on disk before a record behind it is delivered.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from anyio import to_thread

from kzconsumer.errors import KzConsumerError
from kzconsumer.fetcher.corrupt_batch import Jump, NoJump, Unusable, jump, without_way
from kzconsumer.settings.sections import FetchSettings

log = structlog.get_logger("kzconsumer.fetcher")


class CorruptPolicy:
    """The policy of one member: `fail`, `skip` or `quarantine`."""

    def __init__(self, settings: FetchSettings) -> None:
        self._fails = settings.on_corrupt == "fail"
        keeps = settings.on_corrupt == "quarantine"
        self._directory = Path(settings.quarantine) if keeps and settings.quarantine else None

    async def way_over(
        self, found: Unusable, records: memoryview, end_of_log: int, leads_on: Callable[[int], Awaitable[bool]]
    ) -> int | None:
        """The offset to go on at, once the loss has been told and the bytes are kept; None when more bytes may tell.

        `leads_on` asks the broker whether there is something to read at an offset: of a batch that is cut off nobody
        has seen the end. Raises KzConsumerError where the stream has to fail.
        """
        if self._fails:
            raise found.error
        way = jump(found, records, end_of_log)
        if way is NoJump.MORE:
            return None
        if not isinstance(way, Jump) or (found.cut_off and not await leads_on(way.until)):
            raise without_way(found)
        kept = await self._keep(found, records[way.start : way.end])
        log.error(
            "records are lost: a batch that cannot be used is jumped over",
            topic=found.topic_partition.topic,
            partition=found.topic_partition.partition,
            first=found.offset,
            until=way.until,
            reason=found.reason,
            kept=str(kept) if kept else None,
        )
        return way.until

    async def _keep(self, found: Unusable, data: memoryview) -> Path | None:
        if self._directory is None:
            return None
        path = self._directory / f"{found.topic_partition}-{found.offset}.bin"
        try:
            await to_thread.run_sync(_write, path, data)
        except OSError as error:
            raise KzConsumerError(
                f"{found.topic_partition}: the bad batch at offset {found.offset} cannot be kept: {error}"
            ) from error
        return path


def _write(path: Path, data: memoryview) -> None:
    """All bytes, on disk, under a name that never holds a part of them. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if path.read_bytes() == data:
            return  # it came again, because its offset was not committed in time
        raise FileExistsError(f"{path} is there with other bytes: move it away")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
