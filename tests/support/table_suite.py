"""What holds for every table that ranges are committed to (Delta, Iceberg): one suite, a class for each.

`tests.support.sink_contract` has what holds for every sink.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from kzconsumer.sinks.interface import RangeData
from kzconsumer_files.publication import SetAside
from kzconsumer_files.range_names import RangeOverlap, TargetOwner, range_names, scope
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from tests.support.copied import copied
from tests.support.delta import OWNER, Writer, require_refused
from tests.support.disk import watched_disk
from tests.support.range_data import range_data

Offsets = list[tuple[int, int]]


def offsets(partition: int, first: int, until: int) -> Offsets:
    return [(partition, offset) for offset in range(first, until)]


def once(run: Callable[[], object]) -> Callable[[], None]:
    """Suspends a writer right before its first commit while another one does something."""
    left = [run]

    def step() -> None:
        if left:
            left.pop()()

    return step


class TableSuite:
    """A subclass names the kind of table. Everything of it is below `directory`."""

    made_of_rows: bool
    """Whether the first rows determine the columns, so that there is no table before."""

    def claimed(self, directory: Path, owner: TargetOwner = OWNER) -> DeltaTarget | IcebergTarget:
        raise NotImplementedError

    def rows(self, directory: Path) -> Offsets:
        """Partition and offset of each row, by two readers."""
        raise NotImplementedError

    def committed(self, directory: Path) -> list[Path]:
        """The table's own files, but for those of earlier states."""
        raise NotImplementedError

    log: type
    """Its `commit` says whether it was the first, and its `sync` makes a commit durable, if it is in a directory: what
    writes tables syncs nothing.
    """

    @pytest.fixture
    def writer(self, tmp_path: Path) -> Writer[Any]:
        return Writer(self.claimed(tmp_path), tmp_path / "scratch")

    def test_of_two_writers_the_first_wins_and_the_second_finds_it(self, writer: Writer[Any], tmp_path: Path) -> None:
        """The second one has read the table before the first one wrote to it, like a zombie."""
        other = Writer(self.claimed(tmp_path), tmp_path / "other")
        same = range_data("t", 0, 0, 10), range_data("t", 1, 0, 4)
        published: list[int] = []
        first = once(lambda: published.append(other.publish(other.stage(*same))))
        assert writer.publish(writer.stage(*same, range_data("t", 2, 0, 3)), first) == 1
        assert published == [2]
        assert self.rows(tmp_path) == offsets(0, 0, 10) + offsets(1, 0, 4) + offsets(2, 0, 3)
        late = writer.stage(range_data("t", 0, 10, 20))
        assert writer.publish(late, once(lambda: other.publish(other.stage(range_data("t", 1, 4, 6))))) == 1
        assert self.rows(tmp_path) == offsets(0, 0, 20) + offsets(1, 0, 6) + offsets(2, 0, 3)

    def test_a_range_that_is_partly_in_the_table_is_refused(self, writer: Writer[Any]) -> None:
        writer.publish(writer.stage(range_data("t", 0, 0, 10)))
        part = range_data("t", 0, 5, 15)
        with pytest.raises(RangeOverlap, match=r"t-0 \[5, 15\).* has t-0 up to offset 10\. .* --to-offset 10 "):
            writer.publish(writer.stage(part))
        with pytest.raises(RangeOverlap):
            writer.target.set_aside(part.identity, 10)
        assert writer.target.has([part.identity]) == []

    def test_a_range_that_a_later_epoch_has_is_refused(self, writer: Writer[Any], tmp_path: Path) -> None:
        """The group's nodes are of before a reset, or of before two of them."""

        def part(epoch: int, first: int, until: int, topic: str = "t") -> RangeData:
            return msgspec.structs.replace(range_data(topic, 0, first, until), epoch=epoch)

        assert writer.publish(writer.stage(part(9, 0, 5), part(0, 0, 5, "u"))) == 2
        assert writer.publish(writer.stage(part(11, 2, 20), part(10, 0, 2, "v"))) == 2
        restarted = Writer(self.claimed(tmp_path), tmp_path / "restarted")
        for each in (writer, restarted):
            for earlier in (part(9, 5, 8), part(10, 2, 20), part(2, 0, 30)):
                text = rf"of epoch {earlier.epoch} .* has t-0 of a later epoch up to offset 20\. .* --to-offset 20 "
                with pytest.raises(RangeOverlap, match=text):
                    each.publish(each.stage(earlier))
                with pytest.raises(RangeOverlap):
                    each.target.set_aside(earlier.identity, 1)
        assert writer.publish(writer.stage(part(10, 20, 21), part(12, 4, 6, "v"), part(0, 5, 8, "u"))) == 3
        found = [each.identity[3:] for each in writer.target.held(False).ranges if each.identity.topic == "t"]
        assert found == [(9, 0, 5), (11, 2, 20), (10, 20, 21)]

    def test_a_range_in_flight_while_the_brokers_were_upgraded_is_not_written_again(
        self, writer: Writer[Any], tmp_path: Path
    ) -> None:
        """The cluster has an id now, so the group's ranges have other names; the first one follows no range."""

        def part(first: int, until: int, epoch: int = 0, partition: int = 0) -> RangeData:
            return msgspec.structs.replace(range_data("t", partition, first, until), epoch=epoch)

        before = Writer(self.claimed(tmp_path, TargetOwner(cluster="zk:2181/kafka", group="g")), tmp_path / "before")
        assert before.publish(before.stage(part(0, 10), part(0, 10, partition=1))) == 2
        former = scope("zk:2181/kafka", "g", "spark")
        target = type(writer.target)(msgspec.structs.replace(writer.target.to, former_scope=former))
        after = Writer(target, tmp_path / "after")
        for each in map(after.stage, (part(0, 10), part(5, 15))):
            with pytest.raises(RangeOverlap, match=r"up to offset 10\. The group .* had no id, .* --to-offset 10 "):
                after.publish(each)
            with pytest.raises(RangeOverlap):
                target.missing(target.open(), [staged.part for staged in each])
        following, again, another = part(10, 15), part(0, 5, epoch=1, partition=1), part(0, 5, partition=2)
        assert after.publish(after.stage(following, again, another)) == 3
        found = [each.identity for each in target.held(False).ranges]
        assert found == [each.identity for each in (following, again, another)]

    def test_a_range_set_aside_is_not_published_by_a_late_writer(self, writer: Writer[Any], tmp_path: Path) -> None:
        writer.publish(writer.stage(range_data("t", 1, 0, 3)))
        aside, other = range_data("t", 0, 0, 10), range_data("t", 1, 3, 5)
        late = once(lambda: asides.append(self.claimed(tmp_path).set_aside(aside.identity, 10)))
        asides: list[bool] = []
        with pytest.raises(SetAside, match=r'^t\+0\+.* set aside .* on_batch_failure = "quarantine"'):
            writer.publish(writer.stage(aside, other), late)
        assert asides == [True]
        assert self.rows(tmp_path) == offsets(1, 0, 5)
        with pytest.raises(SetAside):
            writer.target.missing(writer.target.open(), [each.part for each in writer.stage(aside)])
        assert writer.target.has([aside.identity, other.identity]) == [other.identity]
        assert self.claimed(tmp_path).set_aside(aside.identity, 10)
        assert not self.claimed(tmp_path).set_aside(other.identity, 2)
        assert writer.publish(writer.stage(range_data("t", 0, 10, 12))) == 1
        found = writer.target.held(True)
        assert sorted(each.identity[1::4] for each in found.ranges) == [(0, 12), (1, 3), (1, 5)]
        assert found.leftovers == (
            "t-0[0..10) was set aside, as a member could not write it or its log was cut off: it is never written",
        )

    @pytest.mark.parametrize("place", [0, -1])
    def test_a_range_of_a_long_topic_that_an_earlier_version_has_set_aside(
        self, writer: Writer[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
    ) -> None:
        """Its name has the whole topic, or a short one."""
        part = range_data("t" * 220, 0, 0, 10)
        assert writer.publish(writer.stage(range_data("t", 1, 0, 3))) == 1
        with monkeypatch.context() as before:
            before.setattr(
                "kzconsumer_spark.destinations.table_history.range_names", lambda part: range_names(part)[place:][:1]
            )
            assert self.claimed(tmp_path).set_aside(part.identity, 10)
        assert writer.target.has([part.identity]) == []
        with pytest.raises(SetAside):
            writer.publish(writer.stage(part))

    def test_groups_share_a_table_with_separate_offsets(self, writer: Writer[Any], tmp_path: Path) -> None:
        other = Writer(self.claimed(tmp_path, TargetOwner(cluster="c", group="h")), tmp_path / "other")
        for each in (writer, other):
            assert each.publish(each.stage(range_data("t", 0, 0, 5))) == 1
        assert self.rows(tmp_path) == sorted(offsets(0, 0, 5) * 2)
        assert len(writer.target.held(True).ranges) == 1

    def test_ranges_without_records_are_known_too(self, writer: Writer[Any], tmp_path: Path) -> None:
        """Also by a claim that asks for them, before any row has been written."""
        empty = range_data("t", 0, 0, 10, [])
        assert writer.publish(writer.stage(empty)) == (0 if self.made_of_rows else 1)
        assert writer.target.has([empty.identity]) == [empty.identity]
        assert writer.publish(writer.stage(range_data("t", 2, 0, 2))) == 1
        assert writer.target.has([empty.identity]) == [empty.identity]
        assert writer.publish(writer.stage(empty, range_data("t", 1, 0, 2))) == (2 if self.made_of_rows else 1)
        assert writer.target.has([empty.identity]) == [empty.identity]
        assert self.rows(tmp_path) == offsets(1, 0, 2) + offsets(2, 0, 2)
        counted = [(each.identity.partition, each.records_in, each.rows) for each in writer.target.held(True).ranges]
        assert sorted(counted) == [(0, 0, 0), (1, 2, 2), (2, 2, 2)]

    def test_a_range_follows_one_that_was_set_aside(self, writer: Writer[Any], tmp_path: Path) -> None:
        one, two, three = (range_data("t", 0, n, n + 5) for n in (0, 5, 10))
        writer.publish(writer.stage(one))
        assert writer.target.set_aside(two.identity, 5)
        assert writer.publish(writer.stage(three), follows=[two.identity]) == 1
        assert self.rows(tmp_path) == offsets(0, 0, 5) + offsets(0, 10, 15)

    def test_a_table_that_was_restored_takes_nothing_more(self, writer: Writer[Any], tmp_path: Path) -> None:
        require_refused(writer, lambda: copied(tmp_path))

    def test_a_table_that_others_commit_to_each_time_is_given_up(
        self, writer: Writer[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer.publish(writer.stage(range_data("t", 0, 0, 5)))
        monkeypatch.setattr(sys.modules[type(writer.target).__module__], "_TRIES", 3)
        monkeypatch.setattr(self.log, "commit", Mock(return_value=False))
        late = range_data("t", 0, 5, 9)
        with pytest.raises(OSError, match=r": others committed (to the table first|first or held its lock), 3 times$"):
            writer.publish(writer.stage(late))
        assert not writer.target.has([late.identity])

    def test_what_a_table_has_said_is_on_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Files before their commit, a commit before it counts: also that of a member that died before it synced it."""

        class Dies(Exception):
            pass

        def die(log: object, table: object) -> None:
            raise Dies

        def killed(write: Callable[[], object]) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(self.log, "sync", die)
                with pytest.raises(Dies):
                    write()
            assert any(disk.missing(file) is not None for file in self.committed(tmp_path))

        with watched_disk(tmp_path) as disk:
            writer = Writer(self.claimed(tmp_path), tmp_path / "scratch")
            files = 0

            def before_the_commit() -> None:
                nonlocal files
                there = list(tmp_path.rglob("*.parquet"))
                disk.require(*there)
                files = len(there)

            for number in range(3):
                part = range_data("t", 0, 5 * number, 5 * number + 5)
                assert writer.publish(writer.stage(part), before_the_commit) == 1
                assert files == number + 1
                disk.require(*self.committed(tmp_path), *tmp_path.rglob("*.parquet"))
            assert self.claimed(tmp_path).set_aside(range_data("t", 0, 15, 20).identity, 5)
            disk.require(*self.committed(tmp_path))
            asks: list[Callable[[IcebergTarget | DeltaTarget, RangeData], object]] = [
                lambda target, part: target.has([part.identity]),
                lambda target, part: target.set_aside(part.identity, 5),
                lambda target, part: Writer(target, tmp_path / "later").publish(writer.stage(part)),
            ]
            for number, ask in enumerate(asks):
                part, aside = range_data("t", 1 + number, 0, 5), range_data("t", 1 + number, 5, 10)
                killed(lambda: writer.publish(writer.stage(part)))  # noqa: B023
                ask(self.claimed(tmp_path), part)
                disk.require(*self.committed(tmp_path))
                killed(lambda: writer.target.set_aside(aside.identity, 5))  # noqa: B023
                with suppress(SetAside):
                    ask(self.claimed(tmp_path), aside)
                disk.require(*self.committed(tmp_path))
