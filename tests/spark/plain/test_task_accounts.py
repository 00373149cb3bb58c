"""What tasks tell of the parts that they read: whole ranges, however they are divided and however often tasks run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.records.checksums import contents_of
from kzconsumer.registry.claim_record import spans_of
from kzconsumer_files.parquet import spark_columns
from kzconsumer_spark.executors.fetching import NotWholeError, PartAccount, PartReading, part_accounts, whole
from kzconsumer_spark.ranges.batch import ACCOUNT, PartsRead
from tests.support.range_data import range_data, record

ROOT = Path(__file__).parents[3]
ALL = range_data("t", 0, 0, 30, batches=7)
OTHER = range_data("t", 1, 5, 9)


def span(partition: int, first: int, until: int) -> OffsetRange:
    return OffsetRange("t", partition, first, until)


def rows_of(part: OffsetRange, left_out: tuple[tuple[int, int], ...] = ()) -> list[pa.RecordBatch]:
    """As the task delivers them."""
    data = {0: ALL, 1: OTHER}[part.partition].between(part.first, part.until)
    reading = PartReading(part, left_out)
    return [*reading.with_account(spark_columns(kept) for each in data.batches if len(kept := reading.take(each)))]


def accounts_in(batches: list[pa.RecordBatch]) -> list[PartAccount]:
    return part_accounts(text for rows in batches for text in rows[ACCOUNT].to_pylist() if text is not None)


def account(part: OffsetRange) -> PartAccount:
    (found,) = accounts_in(rows_of(part))
    return found


@given(st.sets(st.integers(1, 29), max_size=6), st.randoms())
def test_the_parts_of_a_range_are_the_range(cuts: set[int], chance: Random) -> None:
    """In whatever order they arrive, and if tasks run twice. Its contents are what a member plans that reads it."""
    reported = [account(span(0, first, until)) for first, until in pairwise(sorted({0, 30, *cuts}))]
    reported += [account(OTHER.range), *chance.sample(reported, chance.randint(0, len(reported)))]
    chance.shuffle(reported)
    expected = {part.topic_partition: PartsRead(contents_of(part.batches)) for part in (ALL, OTHER)}
    assert whole([ALL.range, OTHER.range], reported) == expected
    # The log has lost what is between the spans.
    lost = [account(span(0, 3, 7)), account(span(0, 9, 12))]
    gaps = contents_of([*ALL.between(3, 7).batches, *ALL.between(9, 12).batches])
    assert whole([span(0, 3, 7), span(0, 9, 12)], lost) == {ALL.topic_partition: PartsRead(gaps)}


def test_the_account_is_in_the_last_record_and_adds_no_row() -> None:
    batches = rows_of(span(0, 0, 30))
    assert len(batches) == len(ALL.batches)
    assert [n for n, text in enumerate(text for rows in batches for text in rows[ACCOUNT].to_pylist()) if text] == [29]
    assert [offset for rows in batches for offset in rows["offset"].to_pylist()] == list(range(30))


def test_a_part_without_records_has_a_row_of_its_own() -> None:
    empty, reading = span(0, 40, 50), PartReading(span(0, 40, 50))
    (rows,) = reading.with_account([])
    (reported,) = accounts_in([rows])
    assert (reported.range, reported.contents.records, rows["offset"].to_pylist()) == (empty, 0, [None])
    assert rows.schema == rows_of(span(0, 0, 1))[0].schema


def test_rejected_records_are_counted_and_not_delivered() -> None:
    """So a range has the same contents before and after its records were rejected."""
    batches = rows_of(span(0, 0, 30), ((0, 1), (10, 12), (29, 30)))
    assert [offset for rows in batches for offset in rows["offset"].to_pylist()] == [*range(1, 10), *range(12, 29)]
    assert accounts_in(batches) == [msgspec.structs.replace(account(span(0, 0, 30)), rejected=4)]
    none_left = rows_of(span(0, 0, 30), ((0, 30),))
    assert accounts_in(none_left) == [msgspec.structs.replace(account(span(0, 0, 30)), rejected=30)]
    assert [rows["offset"].to_pylist() for rows in none_left] == [[None]]


@given(st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29)), st.integers(1, 29))
def test_what_is_delivered_is_known_whatever_the_log_has_lost(there: set[int], bad: set[int], cut: int) -> None:
    """Compaction may have removed rejected records since, and others."""
    data = range_data("t", 0, 0, 30, [record(n) for n in sorted(there)])
    accounts, delivered = list[PartAccount](), 0
    for part in (span(0, 0, cut), span(0, cut, 30)):
        reading = PartReading(part, spans_of(bad))
        kept = [reading.take(each) for each in data.between(part.first, part.until).batches]
        delivered += sum(each.num_rows for each in kept)
        accounts += accounts_in([*reading.with_account(spark_columns(each) for each in kept if len(each))])
    read = whole([ALL.range], accounts)[ALL.topic_partition]
    assert read.contents == contents_of(data.batches)
    assert read.contents.records - read.rejected == delivered == len(there - bad)


def failing() -> Iterator[pa.RecordBatch]:
    yield from (spark_columns(each) for each in ALL.batches)
    raise OSError("gone")


def test_a_task_that_fails_tells_nothing() -> None:
    delivered: list[pa.RecordBatch] = []
    with pytest.raises(OSError, match="gone"):
        delivered.extend(PartReading(ALL.range).with_account(failing()))
    assert len(delivered) == len(ALL.batches) - 1
    assert accounts_in(delivered) == []


def test_on_the_drivers_machine_accounts_are_lines_of_a_file_and_rows_are_as_they_came(tmp_path: Path) -> None:
    file = tmp_path / "accounts"
    for part in (span(0, 0, 10), span(0, 10, 30)):
        reading = PartReading(part, ((12, 14),))
        rows = [spark_columns(reading.take(each)) for each in ALL.between(part.first, part.until).batches]
        assert [*reading.noting_account(rows, file)] == rows
    assert not [*PartReading(span(0, 40, 50)).noting_account([], file)]
    with pytest.raises(OSError, match="gone"):
        [*PartReading(ALL.range).noting_account(failing(), file)]
    cut_short = PartReading(ALL.range).noting_account(map(spark_columns, ALL.batches), file)
    assert next(cut_short).num_rows
    del cut_short
    found = part_accounts(file.read_text().splitlines())
    assert found[:2] == [account(span(0, 0, 10)), msgspec.structs.replace(account(span(0, 10, 30)), rejected=2)]
    assert [(each.range, each.contents.records) for each in found[2:]] == [(span(0, 40, 50), 0)]


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        ([], "t-0[0..30): no task has accounted for the offsets from 0 on"),
        ([span(0, 0, 10)], "t-0[0..30): no task has accounted for the offsets from 10 on"),
        ([span(0, 0, 10), span(0, 11, 30)], "from 10 on"),
        ([span(0, 10, 30)], "from 0 on"),
        ([span(0, 0, 10), span(0, 9, 30)], "from 10 on"),
        ([span(0, 0, 30), span(1, 5, 9)], "t-1[5..9) was read, and is no part of the batch"),
    ],
)
def test_what_is_not_the_whole(reported: list[OffsetRange], why: str) -> None:
    with pytest.raises(NotWholeError) as raised:
        whole([ALL.range], map(account, reported))
    assert str(raised.value).endswith(why)
    assert whole([ALL.range], [account(ALL.range)])


def test_a_part_that_changed_while_tasks_read_it_twice() -> None:
    first = account(span(0, 0, 30))
    changed = msgspec.structs.replace(first, contents=contents_of(ALL.between(1, 30).batches))
    with pytest.raises(NotWholeError, match=r"^t-0\[0..30\) was read twice, and changed in between: 30 rec"):
        whole([ALL.range], [first, changed])
    assert whole([], []) == {}
    assert TopicPartition("t", 0) in whole([ALL.range], [first, first])


WITHOUT_PANDAS = """
import importlib.abc, sys
from kzconsumer.model import OffsetRange
from kzconsumer.records.decode import decode
from tests.support.record_sets import Record, record_batch

class Noted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pandas":
            print("pandas is wanted", flush=True)

sys.meta_path.insert(0, Noted())
from kzconsumer_spark.executors.fetching import PartReading
from kzconsumer_spark.ranges.batch import ACCOUNT
from kzconsumer_spark.executors.fetching import spark_columns, without_time
sent = Record(b"k", None, ((b"h", b"1"),)), Record(None, b"v"), Record(None, b"v", (), 10**18)
body = memoryview(record_batch(sent, base_offset=0))
decoded = decode(body, topic="t", partition=0, start=0, aborted=(), largest_body=1 << 20)
reading = PartReading(OffsetRange("t", 0, 0, 3))
records = reading.take(decoded.records.columns())
print(without_time(records))
for rows in reading.with_account([spark_columns(records[:2])]):
    print([text is None for text in rows[ACCOUNT].to_pylist()], rows["headers"].to_pylist()[1])
import pyarrow
pyarrow.scalar(1)  # the control
"""


def test_the_source_of_the_query_loads_little_until_it_reads() -> None:
    """Half a dozen processes of each start of Spark import it, of which one or two read."""
    program = (
        "import sys; from kzconsumer_spark.executors.range_source import RangeSource\n"
        "print(RangeSource({'path': '/'}).schema(), RangeSource.name())\n"
        "print(*{'pyarrow', 'kzconsumer_spark.executors.fetching', 'pyspark'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[1:] == ["pyspark"], done


def test_a_task_does_not_load_pandas() -> None:
    """Each start of Spark has several Python processes, which would take twice as long to be ready."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PANDAS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[:3] == ["[2]", "[True, False] None", "pandas is wanted"], done
