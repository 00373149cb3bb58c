"""What happens to rejected records: policies of classes, dead letters that cannot be written, counts and log lines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from structlog.testing import capture_logs

from kzconsumer import rejected
from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.errors import ConfigError, DeadLetterError, RecordRejectedError
from kzconsumer.offsets.progress import Message
from kzconsumer.rejected import RejectedRecord, RejectedRecords, check_rejected
from kzconsumer.settings.settings import Settings


class Box:
    """A destination of dead letters that is full the first few times, and counts the attempts."""

    def __init__(self, full: int = 0) -> None:
        self.full = full
        self.attempts = 0
        self.letters: list[DeadLetter] = []

    async def write(self, letters: Sequence[DeadLetter]) -> None:
        self.attempts += 1
        if self.attempts <= self.full:
            raise DeadLetterError("the box is full")
        self.letters += letters

    def close(self) -> None: ...


class Case:
    def __init__(self, box: Box | None = None, **table: object) -> None:
        self.box = box or Box()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.rejects = RejectedRecords(configured(table), self.box, self.counts)

    async def settle(self, *records: RejectedRecord) -> bool:
        return await self.rejects.handle(records, lambda: False)


def configured(table: Mapping[str, object], **others: Mapping[str, object]) -> Settings:
    return Settings.from_dict(
        {"zookeeper": {"connect": "zk:2181"}, "group": {"id": "audit"}, "rejected": table, **others}
    )


def rejected_record(offset: int, error_class: str = "rejected", reason: str = "no such order") -> RejectedRecord:
    return RejectedRecord(Message("orders", 3, offset, b"k", b"v"), error_class, reason)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(rejected, "LONGEST_PAUSE", 0.002)


async def test_the_policy_fail_raises_before_anything_is_written() -> None:
    case = Case(policy="dead-letter", classes={"grave": "fail"}, directory="letters")
    with pytest.raises(
        RecordRejectedError, match="orders-3 at offset 8 was rejected as grave: no such order"
    ) as raised:
        await case.settle(rejected_record(7), rejected_record(8, "grave"))
    assert (raised.value.topic_partition, raised.value.offset) == (("orders", 3), 8)
    assert not case.box.letters
    assert case.counts == {("grave", "fail"): 1}


async def test_a_record_without_a_class_is_not_said_to_be_rejected_as_rejected() -> None:
    with pytest.raises(RecordRejectedError, match="orders-3 at offset 8 was rejected: no such order"):
        await Case(policy="fail").settle(rejected_record(8, "rejected"))


async def test_each_class_has_its_policy() -> None:
    case = Case(classes={"undecodable": "dead-letter", "too-large": "skip"}, policy="skip", directory="letters")
    with capture_logs() as output:
        assert await case.settle(
            rejected_record(1, "undecodable"),
            rejected_record(2, "too-large"),
            rejected_record(3),
            rejected_record(4, "odd"),
        )
    assert [letter.message.offset for letter in case.box.letters] == [1]
    assert case.counts == {
        ("undecodable", "dead-letter"): 1,
        ("too-large", "skip"): 1,
        ("rejected", "skip"): 1,
        ("other", "skip"): 1,
    }
    assert [(line["log_level"], line["error_class"], line["offset"]) for line in output] == [
        ("warning", "undecodable", 1),
        ("error", "too-large", 2),
        ("error", "rejected", 3),
        ("error", "odd", 4),
    ]
    assert all(line["topic"] == "orders" and line["partition"] == 3 and line["reason"] for line in output)
    assert "b'v'" not in str(output), "contents are not logged"


async def test_a_dead_letter_that_cannot_be_written_is_retried_and_reported() -> None:
    case = Case(Box(full=3), policy="dead-letter", directory="letters")
    with capture_logs() as output:
        assert await case.settle(rejected_record(5), rejected_record(6))
    waits = [line for line in output if line["event"] == "dead letter not written, partition waits"]
    assert len(waits) == 3
    assert [(line["offset"], line["records"], line["reason"]) for line in waits] == [(5, 2, "the box is full")] * 3
    assert [letter.message.offset for letter in case.box.letters] == [5, 6]


async def test_waiting_ends_when_the_partition_is_lost() -> None:
    case, lost = Case(Box(full=1 << 30), policy="dead-letter", directory="letters"), False
    waiting = asyncio.create_task(case.rejects.handle([rejected_record(5)], lambda: lost))
    async with asyncio.timeout(5):
        while case.box.attempts < 2:
            await asyncio.sleep(0.001)
        assert not waiting.done()
        lost = True
        assert not await waiting
    assert not case.counts
    assert not await case.rejects.handle([rejected_record(5)], lambda: True)


async def test_a_lost_partition_is_noticed_during_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner waits for the release."""
    monkeypatch.setattr(rejected, "FIRST_PAUSE", 1000.0)
    monkeypatch.setattr(rejected, "LONGEST_PAUSE", 1000.0)
    monkeypatch.setattr(rejected, "LOOK", 0.001)
    case, lost = Case(Box(full=1 << 30), policy="dead-letter", directory="letters"), False
    waiting = asyncio.create_task(case.rejects.handle([rejected_record(5)], lambda: lost))
    async with asyncio.timeout(5):
        while not case.box.attempts:
            await asyncio.sleep(0.001)
        lost = True
        assert not await waiting
    assert case.box.attempts == 1


async def test_log_lines_per_class_are_limited_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    case, at = Case(policy="skip"), 1000.0
    monkeypatch.setattr(rejected, "now", lambda: at)
    with capture_logs() as output:
        await case.settle(*map(rejected_record, range(25)))
        at += 61
        await case.settle(rejected_record(25))
    assert [line["offset"] for line in output] == [*range(10), 25]
    assert output[-1]["left_out_before"] == 15
    assert case.counts == {("rejected", "skip"): 26}


async def test_class_names_are_validated() -> None:
    case = Case(policy="skip")
    for name in ("", "two words", "x" * 65, "\N{SNOWMAN}"):
        with pytest.raises(ValueError, match="is not a class of errors"):
            await case.settle(rejected_record(1, name))


def test_invalid_settings() -> None:
    for table, fault in (
        ({"policy": "dead-letter"}, '[rejected]: "dead-letter" needs the key topic, or directory'),
        ({"classes": {"odd": "ignore"}}, "classes"),
    ):
        with pytest.raises(ConfigError) as raised:
            configured(table)
        assert fault in str(raised.value)
    with pytest.raises(ConfigError, match="directory: cannot be given together with topic"):
        check_rejected(configured({"policy": "dead-letter", "topic": "t", "directory": "d"}))
    kerberos = {"security_protocol": "SASL_SSL", "sasl": {"mechanism": "GSSAPI"}}
    with pytest.raises(ConfigError, match="topic: confluent-kafka as PyPI has it knows no Kerberos: use directory"):
        check_rejected(configured({"policy": "dead-letter", "topic": "letters"}, brokers=kerberos))
    check_rejected(configured({"policy": "dead-letter", "directory": "letters"}, brokers=kerberos))
    for subscription in ({"topics": {"letters": 1}}, {"include": "l.*"}):
        settings = configured({"policy": "dead-letter", "topic": "letters"}, subscription=subscription)
        with pytest.raises(ConfigError, match="letters is consumed by this group itself"):
            settings.require_subscription()


MESSAGE = Message("orders", 3, 2**40, b"k", b"\xff", 1_700_000_000_000, (("trace", b"7"),), 1)
LETTER = DeadLetter(MESSAGE, "undecodable", "näh", "audit")


def test_the_headers_are_those_of_spring_kafka() -> None:
    assert LETTER.headers == [
        ("trace", b"7"),
        ("kafka_dlt-original-topic", b"orders"),
        ("kafka_dlt-original-partition", bytes.fromhex("00000003")),
        ("kafka_dlt-original-offset", bytes.fromhex("0000010000000000")),
        ("kafka_dlt-original-timestamp", bytes.fromhex("0000018bcfe56800")),
        ("kafka_dlt-original-timestamp-type", b"LogAppendTime"),
        ("kafka_dlt-original-consumer-group", b"audit"),
        ("kafka_dlt-exception-fqcn", b"undecodable"),
        ("kafka_dlt-exception-message", "näh".encode()),
    ]


def test_a_line_has_every_field() -> None:
    line = LETTER.line(1_700_000_000_001)
    assert line.endswith(b"\n")
    assert msgspec.json.decode(line) == {
        "topic": "orders",
        "partition": 3,
        "offset": 2**40,
        "timestamp": 1_700_000_000_000,
        "timestamp_type": "LogAppendTime",
        "key": "k",
        "value": {"base64": "/w=="},
        "headers": [["trace", "7"]],
        "group": "audit",
        "error_class": "undecodable",
        "reason": "näh",
        "rejected_at": 1_700_000_000_001,
    }


def test_a_record_without_time_and_value_and_a_reason_that_is_not_utf8() -> None:
    letter = DeadLetter(Message("t", 0, 1, None, None), "rejected", "\udcff" + "x" * 5000, "g")
    headers = dict(letter.headers)
    assert headers["kafka_dlt-original-timestamp"] == b"\xff" * 8
    assert headers["kafka_dlt-original-timestamp-type"] == b"NoTimestampType"
    assert len(headers["kafka_dlt-exception-message"] or b"") == 4096
    found = msgspec.json.decode(letter.line(0))
    assert (found["key"], found["value"], found["timestamp"]) == (None, None, None)
