"""Records whose timestamp Spark cannot hold, as tasks meet them.

A task of the sink names them, and the member decides about them. A task of the source has no member at hand: it carries
out `[rejected]` itself.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kzconsumer.errors import RecordRejectedError
from kzconsumer.figures import some
from kzconsumer.group.reachable import bootstrap
from kzconsumer.model import OffsetRange
from kzconsumer.plugins import require_extra
from kzconsumer.records.columns import messages
from kzconsumer.registry.offset_list import offset_list, offsets_in, spans_of
from kzconsumer.rejected.dead_letter import DeadLetter
from kzconsumer.rejected.letter_files import LetterFiles
from kzconsumer.rejected.letter_topic import LetterTopic
from kzconsumer.rejected.rejects import LetterBox
from kzconsumer.settings.sections import RejectedSettings
from kzconsumer.sinks.interface import Rejected
from kzconsumer_files.parquet.records import NO_TIME, UNSTORABLE
from kzconsumer_spark.executors.access import BrokerAccess, PlannedBrokers

MOST_NAMED: Final = 1000
"""Records by which one task fails; the others are named by the next one."""


_SPANS: Final = 20
"""Of offsets, in one line of an executor's log."""


class NotStorableError(Exception):
    """Some records of a part of a range. The text, in one line, is for `rejected_in`."""

    def __init__(self, part: OffsetRange, offsets: Sequence[int]) -> None:
        spans = spans_of(offsets[:MOST_NAMED])
        said = part.topic, part.partition, part.first, offset_list(spans, part.first)
        super().__init__(msgspec.json.encode(said).decode())


def rejected_in(text: str) -> tuple[Rejected, ...]:
    """The records of a NotStorableError."""
    topic, partition, first, offsets = msgspec.json.decode(text, type=tuple[str, int, int, str])
    found = (offset for begin, until in offsets_in(offsets, first) for offset in range(begin, until))
    return tuple(Rejected(topic, partition, offset, NO_TIME, UNSTORABLE) for offset in found)


class TaskPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`[rejected]` of `group`, for the tasks of a source.

    Dead letters go to a topic of the same cluster, or to a directory that executors have.
    """

    rejected: RejectedSettings
    group: str

    def settle(self, records: pa.RecordBatch, offsets: Sequence[int], access: BrokerAccess) -> pa.RecordBatch:
        """The other records, once those at `offsets` are dead letters or skipped. Blocks.

        A task that Spark repeats writes its letters again. Raises RecordRejectedError, KzConsumerError if letters
        cannot be written.
        """
        policy = self.rejected.of(UNSTORABLE)
        is_bad = pc.is_in(records.column("offset"), pa.array(offsets, pa.int64()))
        bad = list(messages(records.filter(is_bad)))
        if policy == "fail":
            first = bad[0]
            raise RecordRejectedError(first.topic, first.partition, first.offset, UNSTORABLE, NO_TIME)
        if policy == "dead-letter":
            anyio.run(self._write, [DeadLetter(each, UNSTORABLE, NO_TIME, self.group) for each in bad], access)
        spans = [f"{first} to {until - 1}" if until - first > 1 else f"{first}" for first, until in spans_of(offsets)]
        where = f"{bad[0].topic}-{bad[0].partition} at offset {some(spans, _SPANS)}"
        print(f"kzconsumer: rejected, {policy}: {where}: {NO_TIME}", file=sys.stderr)
        return records.filter(pc.invert(is_bad))

    async def _write(self, letters: Sequence[DeadLetter], access: BrokerAccess) -> None:
        async with self._letter_box(access) as box:
            await box.write(letters)

    @asynccontextmanager
    async def _letter_box(self, access: BrokerAccess) -> AsyncIterator[LetterBox]:
        topic, directory, timeout = self.rejected.topic, self.rejected.directory, access.fetch.request_timeout
        if topic is None:
            assert directory is not None  # checked by the settings
            with closing(LetterFiles(Path(directory), self.rejected.file_bytes)) as files:
                yield files
            return
        require_extra(f"{socket.gethostname()}: [rejected] topic", "dead-letter", "confluent_kafka")
        async with access.connections() as brokers:
            addresses = partial(bootstrap, PlannedBrokers(access.brokers), brokers)
            with (
                access.settings() as settings,
                closing(LetterTopic(topic, settings, self.group, timeout, addresses)) as letters,
            ):
                yield letters
