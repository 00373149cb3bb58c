"""What happens to records that the application or the sink rejects: `[rejected]`, by class of error.

A record may be committed once `handle` has returned True: it is a dead letter on disk or in a topic, or was skipped.
Nothing is buffered: the caller waits.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio

from kzconsumer.clock import now
from kzconsumer.errors import ConfigError, KzConsumerError, RecordRejectedError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.plugins import require_extra
from kzconsumer.rejected.dead_letter import DeadLetter
from kzconsumer.rejected.letter_files import LetterFiles
from kzconsumer.rejected.letter_topic import LetterTopic
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.values import RejectPolicy
from kzconsumer.streams.message import Message

log = get_logger("kzconsumer")

OTHER = "other"
"""The label of all classes that the settings do not name, as an application may use any number of them."""

_CLASS = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
# Seconds between two attempts to write a dead letter, doubling.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
# Seconds between two checks whether the partition is lost.
_LOOK = 1.0
# Log lines per class of error and period; those left out are counted in the next one.
_LINES = 10
_LINES_SECONDS = 60.0
_LONGEST_REASON = 200


class RejectedRecord(NamedTuple):
    message: Message
    error_class: str
    reason: str


class LetterBox(Protocol):
    """A destination for dead letters. `write` raises KzConsumerError."""

    async def write(self, letters: Sequence[DeadLetter]) -> None: ...

    def close(self) -> None: ...


class RejectedRecords:
    """The policy of one member."""

    def __init__(self, settings: Settings, letters: LetterBox | None, counts: Counter[tuple[str, str]]) -> None:
        """`counts` are records by class and policy."""
        self._settings = settings.rejected
        self._group = settings.group.id
        self._letters = letters
        self._counts = counts
        self._lines_of: dict[str, _Lines] = {}

    def check(self, at: TopicPartition, offset: int, error_class: str, reason: str) -> None:
        """Raises RecordRejectedError, and counts the record, if the policy of its class is "fail".

        Raises ValueError for what is not a class of errors.
        """
        if not _CLASS.fullmatch(error_class):
            raise ValueError(f"{error_class!r} is not a class of errors: letters, digits, '.', '_', '-'")
        if self._settings.of(error_class) == "fail":
            self._counts[self._label(error_class), "fail"] += 1
            raise RecordRejectedError(*at, offset, error_class, reason)

    async def handle(self, rejected: Sequence[RejectedRecord], lost: Callable[[], bool]) -> bool:
        """Apply the policy of each record's class; returns when the records may be committed.

        Waits while a dead letter cannot be written; False if the partitions are `lost` meanwhile: their next owner gets
        the records. Raises RecordRejectedError if a policy is "fail": then nothing was done with any of them.
        """
        by_policy: dict[RejectPolicy, list[RejectedRecord]] = {}
        for record in rejected:
            message, error_class, reason = record
            self.check(TopicPartition(message.topic, message.partition), message.offset, error_class, reason)
            by_policy.setdefault(self._settings.of(error_class), []).append(record)
        letters = [DeadLetter(*record, self._group) for record in by_policy.get("dead-letter", ())]
        if letters and not await self._write(letters, lost):
            return False
        for policy, records in by_policy.items():
            for record in records:
                self._counts[self._label(record.error_class), policy] += 1
                self._log(record, policy)
        return True

    def close(self) -> None:
        if self._letters is not None:
            self._letters.close()

    async def _write(self, letters: Sequence[DeadLetter], lost: Callable[[], bool]) -> bool:
        assert self._letters is not None  # checked by the settings
        pause, began = _FIRST_PAUSE, now()
        while not lost():
            try:
                await self._letters.write(letters)
            except KzConsumerError as error:
                first = letters[0].message
                log.error(
                    "dead letter not written, partition waits",
                    topic=first.topic,
                    partition=first.partition,
                    offset=first.offset,
                    records=len(letters),
                    seconds=round(now() - began, 1),
                    reason=str(error),
                )
            else:
                return True
            for _ in range(math.ceil(pause / _LOOK)):
                if lost():
                    return False
                await anyio.sleep(min(pause, _LOOK))
            pause = min(pause * 2, _LONGEST_PAUSE)
        return False

    def _label(self, error_class: str) -> str:
        named = self._settings.classes
        return error_class if error_class in named or error_class == "rejected" else OTHER

    def _log(self, record: RejectedRecord, policy: RejectPolicy) -> None:
        message, error_class, reason = record
        lines = self._lines_of.setdefault(self._label(error_class), _Lines())
        if not lines.has_line(now()):
            return
        about: dict[str, object] = {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "error_class": error_class,
            "reason": reason[:_LONGEST_REASON],
        }
        if lines.left_out:
            about["left_out_before"], lines.left_out = lines.left_out, 0
        if policy == "dead-letter":
            log.warning("rejected record written as dead letter", **about)
        else:
            log.error("rejected record skipped", **about)


class _Lines:
    """Log lines of one class of error."""

    def __init__(self) -> None:
        self._since = 0.0
        self._lines = 0
        self.left_out = 0

    def has_line(self, at: float) -> bool:
        if at - self._since >= _LINES_SECONDS:
            self._since, self._lines = at, 0
        if self._lines >= _LINES:
            self.left_out += 1
            return False
        self._lines += 1
        return True


def check_rejected(settings: Settings) -> None:
    """Raises ConfigError if `[rejected]` cannot be carried out."""
    wanted = settings.rejected
    if wanted.topic is not None and wanted.directory is not None:
        fault = "cannot be given together with topic: dead letters go to one of them"
        raise ConfigError([f"{settings.source}: [rejected] directory: {fault}"])
    if wanted.keeps and wanted.topic is not None:
        require_extra(f"{settings.source}: [rejected] topic", "dead-letter", "confluent_kafka")
        if settings.brokers.sasl.mechanism == "GSSAPI":
            fault = "confluent-kafka as PyPI has it knows no Kerberos: use directory"
            raise ConfigError([f"{settings.source}: [rejected] topic: {fault}"])


def rejects_of(
    settings: Settings, bootstrap: Callable[[], Awaitable[str]], counts: Counter[tuple[str, str]]
) -> RejectedRecords:
    """As the settings say; `bootstrap` returns brokers that support headers. Raises ConfigError."""
    check_rejected(settings)
    wanted = settings.rejected
    letters: LetterBox | None = None
    if wanted.keeps and wanted.topic is not None:
        timeout = settings.fetch.request_timeout
        letters = LetterTopic(wanted.topic, settings.brokers, settings.group.id, timeout, bootstrap)
    elif wanted.keeps and wanted.directory is not None:
        letters = LetterFiles(Path(wanted.directory), wanted.file_bytes)
    return RejectedRecords(settings, letters, counts)
