"""What a task delivers of a log with records that Spark cannot hold, and of which it reports which."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from kzconsumer.errors import RecordRejectedError
from kzconsumer.fetcher import range_reader
from kzconsumer.model import Broker, OffsetRange
from kzconsumer.records.checksums import contents_of
from kzconsumer.settings.sections import RejectedSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import Rejected
from kzconsumer_files.parquet import NO_TIME, UNSTORABLE
from kzconsumer_spark.executors import fetching, range_source
from kzconsumer_spark.executors.broker_access import BrokerAccess
from kzconsumer_spark.executors.fetching import (
    NotStorableError,
    PartAccount,
    TaskPolicy,
    fetched,
    part_accounts,
    rejected_in,
)
from kzconsumer_spark.executors.range_source import NAME, RangeSource, RangeStreamReader
from kzconsumer_spark.executors.task_parts import PublishedBatch, PublishedBatches, RangePart
from kzconsumer_spark.ranges.batch import ACCOUNT, SCHEMA
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from tests.core.plain.test_range_reader import Led
from tests.support.log_broker import log_broker
from tests.support.range_data import range_data
from tests.support.range_data import record as row
from tests.support.record_sets import Record, record_batch

SETTINGS = Settings.from_dict({"zookeeper": {"connect": "h:1"}, "group": {"id": "g"}})
FIRST_MS, NANOSECONDS = 1_700_000_000_000, 1_700_000_000_000_000_000
BAD = [13, 14, 37]
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
WHOLE = OffsetRange("orders", 0, 0, 60)


def record(n: int, *, bad: bool) -> Record:
    return Record(b"k", b"%d" % n, timestamp=NANOSECONDS if bad else FIRST_MS + n)


def log(partition: int, offset: int) -> bytes:
    """Batches of five records; of partition 1 none is bad."""
    return b"".join(
        record_batch([record(n, bad=not partition and n in BAD) for n in range(first, first + 5)], base_offset=first)
        for first in range(offset // 5 * 5, 60, 5)
    )


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    async with log_broker(log, end=lambda partition: 60) as running:
        monkeypatch.setattr(range_reader, "Leaders", lambda *_: Led(running))
        yield running


async def read(broker: Broker, policy: TaskPolicy | None) -> list[int]:
    access = BrokerAccess(Kafka.of(SETTINGS), [broker])

    def task() -> list[int]:
        return [int(n.as_py()) for batch in fetched([WHOLE], access, policy=policy) for n in batch["offset"]]

    return await asyncio.to_thread(task)


def policy(**settings: object) -> TaskPolicy:
    return TaskPolicy(rejected=msgspec.convert(settings, RejectedSettings), group="readers")


@pytest.mark.parametrize("most", [1000, 2])
async def test_a_task_of_the_sink_names_the_records(broker: Broker, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(fetching, "MOST_NAMED", most)
    with pytest.raises(NotStorableError) as raised:
        await read(broker, None)
    assert rejected_in(str(raised.value)) == tuple(Rejected("orders", 0, n, NO_TIME, UNSTORABLE) for n in BAD[:most])


async def test_a_task_of_the_source_carries_out_the_policy(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RecordRejectedError) as raised:
        await read(broker, policy())
    assert str(raised.value) == str(RecordRejectedError("orders", 0, BAD[0], UNSTORABLE, NO_TIME))
    left = [n for n in range(60) if n not in BAD]
    for given, letters in (
        ({"policy": "fail", "classes": {UNSTORABLE: "skip"}}, []),
        ({"policy": "dead-letter", "directory": str(tmp_path)}, BAD),
    ):
        assert await read(broker, policy(**given)) == left
        done = "dead-letter" if letters else "skip"
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"kzconsumer: rejected, {done}: orders-0 at offset 13 to 14, 37: {NO_TIME}"
        )
        lines = [json.loads(line) for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
        assert [(line["offset"], line["timestamp"], line["key"], line["value"]) for line in lines] == [
            (n, NANOSECONDS, "k", str(n)) for n in letters
        ]
        assert {(line["error_class"], line["reason"], line["group"]) for line in lines} <= {
            (UNSTORABLE, NO_TIME, "readers")
        }


async def test_the_query_of_the_sink_reads_each_published_batch_once(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_source, "_WAIT_SECONDS", 0.05)
    assert RangeSource({"path": str(tmp_path)}).schema() == SCHEMA
    source = RangeSource({"path": str(tmp_path), range_source.IN_ROWS: "true"})
    assert (source.name(), source.schema()) == (NAME, f"{SCHEMA}, {ACCOUNT} string")
    reader = source.streamReader(None)  # type: ignore[arg-type]
    assert isinstance(reader, RangeStreamReader)
    assert [reader.initialOffset(), await asyncio.to_thread(reader.latestOffset)] == [{"batch": -1}] * 2, "none yet"
    parts, batches = (OffsetRange("orders", 1, 5, 23), OffsetRange("orders", 1, 23, 24)), PublishedBatches(tmp_path)
    for number, (part, left_out) in enumerate(zip(parts, (((7, 9),), ()), strict=True)):
        batch = PublishedBatch(
            parts=(part,), tasks=1, epochs=(-1,), left_out=(left_out,), brokers=(broker,), kafka=Kafka.of(SETTINGS)
        )
        batches.publish(number, batch)
    delivered: list[list[int]] = []
    for number, part in enumerate(parts):
        assert reader.latestOffset() == {"batch": number}
        (task,) = reader.partitions({"batch": number - 1}, {"batch": number})
        assert isinstance(task, RangePart)
        found = await asyncio.to_thread(list, reader.read(task))
        assert {tuple(rows.schema.names) for rows in found} == {(*COLUMNS, ACCOUNT)}
        delivered.append([int(n.as_py()) for rows in found for n in rows["offset"]])
        texts = [text for rows in found for text in rows[ACCOUNT].to_pylist()]
        assert texts[:-1] == [None] * (len(delivered[-1]) - 1)
        (account,) = part_accounts(filter(None, texts))
        sent = [row(n, key=b"k", value=b"%d" % n, timestamp=FIRST_MS + n) for n in range(part.first, part.until)]
        contents = contents_of(range_data(*part, sent).batches)
        assert account == PartAccount(*part, contents, len(sent) - len(delivered[-1]))
    assert delivered == [[5, 6, *range(9, 23)], [23]]
    assert reader.latestOffset() == {"batch": 1}, "no more"
