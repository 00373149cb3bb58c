"""What happens to a batch that stays corrupt: `[fetch] on_corrupt`.

Every loss is logged as an error with its offsets. A batch that is set aside is on disk before later records are
delivered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from anyio import to_thread

from kzconsumer.durable_files import create_same
from kzconsumer.errors import KzConsumerError
from kzconsumer.fetcher.corrupt_batch import Jump, NoJump, Unusable, jump, without_way
from kzconsumer.file_names import named_after
from kzconsumer.logs.logger import get_logger
from kzconsumer.settings.sections import FetchSettings

log = get_logger("kzconsumer.fetcher")


class CorruptPolicy:
    """The policy of one member: fail, skip, or set the batch aside in a directory."""

    def __init__(self, settings: FetchSettings) -> None:
        self._fails = settings.on_corrupt == "fail"
        sets_aside = settings.on_corrupt == "quarantine"
        self._directory = Path(settings.quarantine) if sets_aside and settings.quarantine else None

    async def way_over(
        self, found: Unusable, records: memoryview, end_of_log: int, leads_on: Callable[[int], Awaitable[bool]]
    ) -> int | None:
        """The offset to go on at, after the loss is logged and the batch set aside; None if more bytes are needed.

        `leads_on` asks the broker whether there is something to read at an offset, for the end of a batch that is cut
        off is unknown. Raises KzConsumerError if the stream has to fail.
        """
        if self._fails:
            raise found.error
        way = jump(found, records, end_of_log)
        if way is NoJump.MORE:
            return None
        if not isinstance(way, Jump) or (found.cut_off and not await leads_on(way.until)):
            raise without_way(found)
        kept = await self._set_aside(found, records[way.start : way.end])
        log.error(
            "corrupt batch skipped, its records are lost",
            **found.topic_partition._asdict(),
            first=found.offset,
            until=way.until,
            reason=found.reason,
            kept=str(kept) if kept else None,
        )
        return way.until

    async def _set_aside(self, found: Unusable, data: memoryview) -> Path | None:
        if self._directory is None:
            return None
        at = found.topic_partition
        path = self._directory / named_after(at.topic, lambda topic: f"{topic}-{at.partition}-{found.offset}.bin")
        try:
            # It may exist already: the batch was met before, and its offset was not committed in time.
            await to_thread.run_sync(create_same, path, data)
        except OSError as error:
            raise KzConsumerError(
                f"{found.topic_partition}: the corrupt batch at offset {found.offset} cannot be set aside: {error}"
            ) from error
        return path
