"""Which files become one: the cases, and what holds for any ledger."""

from __future__ import annotations

from pathlib import PurePath

from hypothesis import given
from hypothesis import strategies as st

from kzconsumer_spark.identity import LedgerEntry
from kzconsumer_spark.merge_plan import File, Union, unions

SMALL, SIZE = 10, 100


def entry(first: int, until: int, *files: str, partition: int = 0, epoch: int = 0, aside: bool = False) -> LedgerEntry:
    return LedgerEntry(
        topic="t", partition=partition, incarnation="-0x5", epoch=epoch, first=first, until=until,
        records_in=1, records_out=1, records_quarantined=0, files=files, attempt="a", kept_aside=aside,
    )  # fmt: skip


def plan(
    *entries: LedgerEntry, into: dict[str, str] | None = None, **files: File | None
) -> list[tuple[str, list[str]]]:
    def look(name: str) -> File | None:
        return files.get(name, File(name, 1, SMALL, "same"))

    def current(name: str) -> str:
        return (into or {}).get(name, name)

    used = {file for each in entries for file in each.files} | set((into or {}).values())
    found = unions(entries, current, look, used.__contains__, SIZE)
    return [(each.name, [file.name for file in each.files]) for each in found]


def name(first: int, until: int, partition: int = 0, epoch: int = 0) -> str:
    return f"t+{partition}+-5.{epoch}+{first:020d}+{until:020d}.parquet"


def test_neighbours_become_one_in_the_order_of_their_offsets() -> None:
    assert plan(entry(3, 9, "b"), entry(0, 3, "a")) == [(name(0, 9), ["a", "b"])]


def test_what_has_a_gap_between_stays_apart() -> None:
    assert plan(entry(0, 3, "a"), entry(4, 9, "b")) == []
    assert plan(entry(0, 3, "a"), entry(3, 5, aside=True), entry(5, 9, "b")) == []
    assert plan(entry(0, 3, "a"), entry(3, 5), entry(5, 9, "b")) == [(name(0, 9), ["a", "b"])]  # no rows, no gap


def test_partitions_and_epochs_stay_apart() -> None:
    assert plan(entry(0, 3, "a"), entry(3, 9, "b", partition=1), entry(3, 9, "c", epoch=1)) == []


def test_directories_stay_apart() -> None:
    first, second, third = (
        entry(0, 3, "d=1/a", "d=2/a"),
        entry(3, 5, "d=1/b"),
        entry(5, 9, "d=1/c", "d=2/c"),
    )
    assert plan(first, second, third) == [
        (f"d=1/{name(0, 9)}", ["d=1/a", "d=1/b", "d=1/c"]),
        (f"d=2/{name(0, 9)}", ["d=2/a", "d=2/c"]),
    ]


def test_what_is_large_stays_and_what_is_made_is_not_larger_than_asked() -> None:
    half = File("b", 1, SIZE // 2, "same")
    assert plan(entry(0, 1, "a"), entry(1, 2, "b"), entry(2, 3, "c"), b=half) == []
    many = [entry(n, n + 1, f"f{n}") for n in range(25)]
    assert [len(files) for _, files in plan(*many)] == [10, 10, 5]


def test_files_of_other_columns_stay_apart() -> None:
    other = File("c", 1, SMALL, "other")
    ranges = [entry(n, n + 1, file) for n, file in enumerate("abcde")]
    assert plan(*ranges, c=other) == [(name(0, 2), ["a", "b"]), (name(3, 5), ["d", "e"])]


def test_what_cannot_be_read_is_left_alone_and_not_bridged() -> None:
    ranges = [entry(n, n + 1, file) for n, file in enumerate("abcd")]
    assert plan(*ranges, b=None) == [(name(2, 4), ["c", "d"])]
    assert plan(*ranges[:3], b=None) == []


def test_the_files_of_one_range_stay_as_they_are() -> None:
    assert plan(entry(0, 3, name(0, 3), "further")) == []
    assert plan(entry(0, 3, name(0, 3), "further"), entry(3, 4, "b")) == [(name(0, 4), [name(0, 3), "further", "b"])]


def test_what_was_merged_is_merged_again_with_what_follows() -> None:
    ranges = [entry(0, 3, "a"), entry(3, 5, "b"), entry(5, 9, "c")]
    assert plan(*ranges, into={"a": "ab", "b": "ab"}) == [(name(0, 9), ["ab", "c"])]
    assert plan(*ranges[:2], into={"a": "ab", "b": "ab"}) == []


def test_a_name_that_is_taken_is_not_given_again() -> None:
    ranges = [entry(0, 3, "a"), entry(3, 5, "b", "b+1")]
    assert plan(*ranges, into={"a": name(0, 5), "b": name(0, 5)}) == []


LEDGERS = st.lists(
    st.tuples(st.integers(1, 4), st.booleans(), st.sets(st.sampled_from(["", "d=1", "d=2"]), max_size=3)), max_size=30
)


@given(LEDGERS, st.dictionaries(st.integers(0, 29), st.integers(1, 2 * SIZE)), st.integers(1, 3 * SIZE))
def test_no_file_is_in_two_and_no_name_is_taken(
    ledger: list[tuple[int, bool, set[str]]], sizes: dict[int, int], size: int
) -> None:
    entries, at = [], 0
    ends: dict[str, tuple[int, int, int]] = {}
    for number, (length, gap, directories) in enumerate(ledger):
        at += gap
        files = [str(PurePath(each, name(at, at + length))) for each in sorted(directories)]
        ends |= dict.fromkeys(files, (number, at, at + length))
        entries.append(entry(at, at + length, *files))
        at += length

    def look(file: str) -> File:
        return File(file, 1, sizes.get(ends[file][0], 1), "same")

    found: list[Union] = list(unions(entries, lambda each: each, look, ends.__contains__, size))
    merged = [file.name for each in found for file in each.files]
    assert len(merged) == len(set(merged))
    assert not {each.name for each in found} & ends.keys()
    assert len({each.name for each in found}) == len(found)
    for each in found:
        assert len(each.files) > 1
        assert sum(file.size for file in each.files) <= size
        assert {PurePath(file.name).parent for file in each.files} == {PurePath(each.name).parent}
        spans = [ends[file.name][1:] for file in each.files]
        assert spans == sorted(spans)
        first, until = int(each.name.split("+")[3]), int(each.name.split("+")[4].split(".")[0])
        assert (first, until) == (spans[0][0], spans[-1][1])
        covered = {n for number, (length, _, _) in enumerate(ledger) for n in _span(entries[number])}
        assert set(range(first, until)) <= covered, "a gap is in the name"


def _span(of: LedgerEntry) -> range:
    return range(of.first, of.until)
