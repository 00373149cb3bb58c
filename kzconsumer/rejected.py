"""What happens to records that the application or the sink rejects: `[rejected]`, by class of error.

A rejected record is skipped, or becomes a dead letter in a file or in a topic. It may be committed once `handle` has
returned True. Nothing is buffered: the caller waits.
"""

from __future__ import annotations

import math
import re
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anyio
import anyio.from_thread

from kzconsumer.clock import now
from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.durable_files import AppendedFile
from kzconsumer.errors import ConfigError, DeadLetterError, KzConsumerError, RecordRejectedError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Message
from kzconsumer.plugins import require_extra
from kzconsumer.security.tokens import token_of
from kzconsumer.settings.layers import read_secret
from kzconsumer.settings.sections import BrokersSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.value_readers import RejectPolicy
from kzconsumer.threads import in_thread


class LetterFiles:
    """Dead letters as lines of JSON in a directory: `[rejected] directory`, which members may share.

    Each writes files of its own: a new one is begun with the first letter, whenever one has reached `file_bytes`, and
    after somebody has deleted or moved the last one. A file whose last line has no end was being written by a process
    that died; that record is redelivered.
    """

    def __init__(self, directory: Path, file_bytes: int) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._file: AppendedFile | None = None
        self._one_at_a_time = anyio.Lock()

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Write all of them to disk. Raises DeadLetterError: then some of them may have been written."""
        async with self._one_at_a_time:
            try:
                await in_thread(self._write, letters)
            except OSError as error:
                raise DeadLetterError(f"{self._directory}: {error}") from error

    def _write(self, letters: Sequence[DeadLetter]) -> None:
        lines = b"".join(letter.line(time.time_ns() // 1_000_000) for letter in letters)
        if self._file is not None and (self._file.size >= self._file_bytes or not self._file.in_place):
            self.close()
        try:
            if self._file is None:
                begun = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
                self._file = AppendedFile(self._directory / f"{begun}-{uuid.uuid4().hex}.jsonl")
            self._file.append(lines)
        except OSError:
            file, self._file = self._file, None  # it may end with half a line
            if file is not None:
                file.abandon()
            raise

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


# No limit here: the brokers refuse what is too large for a topic.
_LARGEST = 1_000_000_000
# The producer reports failures a little after the timeout.
LATE = 1.0
# Seconds until a token is read again, which may live longer.
_TOKEN_READ = 60.0
# Seconds between two checks whether the caller was cancelled.
_TOPIC_LOOK = 0.2
# Seconds for brokers to say what is wrong with the topic.
_TOPIC_ERROR = 1.0


class LetterTopic:
    """Dead letters as records of a Kafka topic: `[rejected] topic`. The only user of confluent-kafka.

    `bootstrap` returns the registered brokers; `timeout` is for each letter, in seconds. Once `write` returns, all
    in-sync replicas have the letters. Brokers, certificates and passwords are read again for each producer, so after
    each failure.
    """

    def __init__(
        self,
        topic: str,
        settings: BrokersSettings,
        client_id: str,
        timeout: float,
        bootstrap: Callable[[], Awaitable[str]],
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._client_id = client_id
        self._timeout = timeout
        self._bootstrap = bootstrap
        self._producer: Any = None
        self._last_error = ""  # the producer's last error, which says more than "timed out"
        self._one_at_a_time = anyio.Lock()

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        """Write all of them. Raises DeadLetterError, and what `bootstrap` raises: then some may have been written."""
        async with self._one_at_a_time:
            bootstrap = "" if self._producer is not None else await self._bootstrap()
            await in_thread(self._write, letters, bootstrap)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(_TOPIC_LOOK)

    def _write(self, letters: Sequence[DeadLetter], bootstrap: str) -> None:
        from confluent_kafka import KafkaException

        try:
            self._send(letters, bootstrap)
        except (KafkaException, BufferError) as error:
            self.close()
            raise DeadLetterError(f"topic {self._topic}: {error}") from error
        except BaseException:
            self.close()  # what it still has must not be sent along with the next attempt
            raise

    def _send(self, letters: Sequence[DeadLetter], bootstrap: str) -> None:
        failed: list[str] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failed.append(str(error))

        if self._producer is None:
            self._producer = self._made(bootstrap)
        for letter in letters:
            key, value = letter.message.key, letter.message.value
            produce = partial(self._producer.produce, self._topic, value, key, headers=letter.headers)
            self._queue(partial(produce, on_delivery=delivered), failed)
        until = now() + self._timeout + LATE
        while (left := self._producer.flush(_TOPIC_LOOK)) and now() < until:
            anyio.from_thread.check_cancelled()
        if left or failed:
            reasons = dict.fromkeys([*failed[:1], self._last_error, self._topic_error()])
            raise DeadLetterError(f"topic {self._topic}: {'; '.join(filter(None, reasons)) or 'no answer'}")

    def _topic_error(self) -> str:
        """What the brokers say of the topic, such as that there is none, for which letters are only too late."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException):
            found = self._producer.list_topics(self._topic, _TOPIC_ERROR).topics.get(self._topic)
            return found.error.str() if found is not None and found.error is not None else ""
        return ""

    def _queue(self, produce: Callable[[], None], failed: Sequence[str]) -> None:
        """Wait for room: the producer holds at most 100,000 letters, or 1 GiB. Raises BufferError if it gets none."""
        until = now() + self._timeout + LATE
        while True:
            try:
                produce()
            except BufferError:
                if failed or now() >= until:
                    raise
                self._producer.poll(_TOPIC_LOOK)
                anyio.from_thread.check_cancelled()
            else:
                return

    def _made(self, bootstrap: str) -> Any:
        from confluent_kafka import Producer

        self._last_error = ""

        def keep(error: object) -> None:
            self._last_error = str(error)

        return Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": self._client_id,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(self._timeout * 1000),
                "message.max.bytes": _LARGEST,
                "partitioner": "murmur2_random",
                "log_level": 0,
                "error_cb": keep,
                **producer_security(self._settings),
            }
        )


def producer_security(settings: BrokersSettings) -> dict[str, object]:
    """TLS and SASL as librdkafka's settings. Raises DeadLetterError if a file cannot be read."""
    tls, sasl, faults = settings.tls, settings.sasl, list[str]()
    properties: dict[str, object] = {"security.protocol": settings.security_protocol}
    if settings.uses_tls:
        key = tls.key if tls.key is not None else tls.certificate
        password = read_secret(tls.key_password_file, tls.key_password_env, "key_password", "[brokers.tls]", faults)
        properties |= {
            "ssl.ca.location": tls.ca,
            "ssl.certificate.location": tls.certificate,
            "ssl.key.location": key,
            "ssl.key.password": password.decode() if password is not None else None,
            "ssl.endpoint.identification.algorithm": "https" if tls.verify_hostname else "none",
        }
    if settings.uses_sasl and sasl.mechanism == "OAUTHBEARER":
        properties |= {
            "sasl.mechanism": sasl.mechanism,
            "oauth_cb": lambda _: (token_of(sasl), time.time() + _TOKEN_READ),
        }
    elif settings.uses_sasl:
        secret = read_secret(sasl.password_file, sasl.password_env, "password", "[brokers.sasl]", faults)
        properties |= {
            "sasl.mechanism": sasl.mechanism,
            "sasl.username": sasl.username,
            "sasl.password": secret.decode() if secret is not None else None,
        }
    if faults:
        raise DeadLetterError("; ".join(faults))
    return {name: value for name, value in properties.items() if value is not None}


log = get_logger("kzconsumer")

OTHER = "other"
"""The label of all classes that the settings do not name, as an application may use any number of them."""

_CLASS = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
# Seconds between two attempts to write a dead letter, doubling.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# Seconds between two checks whether the partition is lost.
LOOK = 1.0
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
        self.waiting = 0
        """Calls of `handle` whose dead letters could not be written so far."""

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
        # Nothing is buffered: when this returns True the letters are durable, and only then the message is acknowledged
        # or the batch marked. For a replayable sink the order is: dead letters, the rejected offsets in the plan, the
        # rest of the range (`batch_writer`). Otherwise another member could find the range published without knowing of
        # letters that were not written, or write other records than the first one did.
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
        pause, began, waits = FIRST_PAUSE, now(), False
        try:
            while not lost():
                try:
                    await self._letters.write(letters)
                except KzConsumerError as error:
                    self.waiting += not waits
                    waits = True
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
                for _ in range(math.ceil(pause / LOOK)):
                    if lost():
                        return False
                    await anyio.sleep(min(pause, LOOK))
                pause = min(pause * 2, LONGEST_PAUSE)
            return False
        finally:
            self.waiting -= waits

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
