"""Topics of up to 249 characters, which Kafka allows: names that fit stay as they were, others are shortened."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.durable_files import create_whole
from kzconsumer.errors import SinkError
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy
from kzconsumer.file_names import MOST_BYTES, named_after, short
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.sinks.quarantine import RangeQuarantine, kept_ranges
from kzconsumer_files.directory_target import Target
from kzconsumer_files.holdings import files
from kzconsumer_files.range_names import (
    NamedRange,
    RangeOverlap,
    data_file,
    named,
    parsed,
    range_name,
    scoped_file,
    staged_file,
    unique_file,
)
from tests.core.plain.test_corrupt_policy import CORRUPT, LOG
from tests.files.plain.test_parquet_sink import made
from tests.support.range_data import range_data

LONGEST = 249
LONG = "t" * (LONGEST - 1)
TOPICS = st.text("abz019._-", min_size=1, max_size=LONGEST).filter(lambda topic: topic not in (".", ".."))
NUMBERS = st.integers(0, (1 << 31) - 1)
RANGES = st.builds(
    RangeIdentity, TOPICS, NUMBERS, st.integers(0, (1 << 63) - 1), st.integers(0, 999), st.just(7), st.just(1 << 62)
)


def as_before(part: RangeIdentity) -> str:
    return f"{part.topic}+{part.partition}+{part.incarnation:x}.{part.epoch}+{part.first:020d}+{part.until:020d}"


@given(RANGES, NUMBERS, st.sampled_from(["parquet", "orc", "json.gz", "csv.bz2"]))
def test_names_fit_and_those_that_fitted_are_unchanged(part: RangeIdentity, number: int, extension: str) -> None:
    entry, before = f"{range_name(part)}.json", f"{as_before(part)}.json"
    assert len(entry) <= MOST_BYTES
    assert entry == before or len(before) > MOST_BYTES
    visible = "+" if part.topic[0] in "._" else ""
    before = f"{visible}{as_before(part)}{f'+{number}' if number else ''}.{extension}"
    file = data_file(part, extension, number)
    assert len(file) <= MOST_BYTES
    assert file == before or len(before) > MOST_BYTES
    assert file[0] not in "._"
    found = parsed(file)
    assert found is not None
    assert found.alias == named(range_name(part)).alias, "the file is known to be of its line"
    assert found.identity(part.topic) == named(range_name(part)).identity(part.topic) == part
    assert len(staged_file(part.topic, part.partition, number)) <= MOST_BYTES
    assert len(unique_file(part, "f" * 32, number)) <= MOST_BYTES
    assert len(scoped_file(part, "f" * 16)) <= MOST_BYTES


@given(TOPICS, TOPICS)
def test_different_topics_have_different_names(one: str, other: str) -> None:
    assert (short(one) == short(other)) == (one == other)
    assert short(one) == one or "@" in short(one)


def test_a_name_of_several_bytes_a_character_is_measured_in_bytes() -> None:
    """A value in a directory's name may have them; topics do not."""
    assert named_after("é" * 127, str) == "é" * 127
    assert len(named_after("é" * 128, str).encode()) < MOST_BYTES


def ranges_of(topic: str, first: int, count: int) -> list[RangeData]:
    return [range_data(topic, 0, at, at + 5) for at in range(first, first + 5 * count, 5)]


@pytest.mark.parametrize("topic", [f"{LONG}a", f"_{LONG}", "t" * 187, "t" * 200])
async def test_ranges_of_a_long_topic_are_published_folded_and_verified(tmp_path: Path, topic: str) -> None:
    """Twice as many ranges as a fold takes, beside a topic of which only the last character differs."""
    twin = topic[:-1] + "b"
    written = [part for each in (topic, twin) for part in ranges_of(each, 0, 40)]
    async with made(tmp_path / "out") as sink:
        for one, other in zip(written[:40], written[40:], strict=True):
            await sink.write(Batch((one, other)))
        identities = [part.identity for part in written]
        assert list(await sink.has(identities)) == identities
        assert not await sink.has([identities[0]._replace(epoch=1)])
        assert not await sink.set_aside(identities[0], 5)
        with pytest.raises(SinkError, match="overlaps"):
            await sink.write(Batch((range_data(topic, 0, 198, 205),)))
    target = Target(tmp_path / "out")
    target.fold()
    assert target.ledger().folded
    held = files(target, "parquet", count_rows=True)
    assert (held.strays, held.leftovers) == ((), ())
    assert {each.identity.topic for each in held.ranges} == {topic, twin}
    assert sum(each.rows or 0 for each in held.ranges) == 400
    assert not [fault for each in held.ranges for fault in each.faults]
    table = ds.dataset(tmp_path / "out", format="parquet").to_table(columns=["topic", "offset"])
    assert table.sort_by("offset").column("offset").to_pylist() == sorted([*range(200)] * 2)
    with pytest.raises(RangeOverlap):
        target.set_aside(identities[0]._replace(first=3, until=1000), 5)


async def test_a_directory_of_shorter_topics_has_the_names_that_it_had(tmp_path: Path) -> None:
    part = range_data("t" * 180, 0, 0, 5)
    async with made(tmp_path / "out") as sink:
        await sink.write(Batch((part,)))
    assert (tmp_path / "out" / f"{as_before(part.identity)}.parquet").exists()
    assert (tmp_path / "out" / "_kzconsumer" / f"{as_before(part.identity)}.json").exists()


@pytest.mark.parametrize("topic", ["t", f"{LONG}a"])
async def test_a_range_in_quarantine_is_found_with_its_topic(tmp_path: Path, topic: str) -> None:
    async def decide() -> bool:
        return True

    part = range_data(topic, 3, 5, 9)
    aside = RangeQuarantine(tmp_path / "aside", "parquet")
    kept = await aside.keep(part, "broken", decide)
    assert kept is not None
    assert pq.read_metadata(kept).num_rows == 4
    assert kept_ranges(tmp_path / "aside") == [(part.identity, 4)]


async def test_a_corrupt_batch_of_a_long_topic_is_set_aside(tmp_path: Path) -> None:
    policy = CorruptPolicy(FetchSettings(on_corrupt="quarantine", quarantine=str(tmp_path)))
    found = CORRUPT._replace(topic_partition=TopicPartition(f"{LONG}a", 3))

    async def leads_on(offset: int) -> bool:
        return True

    for _ in range(2):  # it is met again after a restart
        assert await policy.way_over(found, memoryview(LOG), 30, leads_on) == 20
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_with_the_longest_name_is_made_whole(tmp_path: Path) -> None:
    assert create_whole(tmp_path / ("n" * MOST_BYTES), b"content")


def test_the_alias_is_that_of_the_line_whatever_the_name_has(tmp_path: Path) -> None:
    whole, shortened = (
        NamedRange(f"{topic}+0+2a.0", named("t+0+2a.0+00000000000000000000+00000000000000000005").span)
        for topic in (LONG, short(LONG))
    )
    assert whole.alias == shortened.alias == shortened.line
