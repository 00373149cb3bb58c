"""Order of syncs in a publication: a power failure leaves each range published completely or not at all.

Staged files, the decision, the published files, the ledger entry: each is on disk before the next one gets its name.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kzconsumer_files.directory_target import Target
from kzconsumer_files.ledger import Folder, LedgerItems
from kzconsumer_files.range_names import LedgerEntry, parsed
from tests.files.plain.test_ledger import planned
from tests.files.plain.test_target import OWNER, attempt_of, free, identity, staged
from tests.support.disk import Disk, watched_disk
from tests.support.failed_syncs import require_written_again


class Order:
    """Requires for each new name in a target that what it depends on is on disk."""

    def __init__(self, target: Target, disk: Disk) -> None:
        self.target = target
        self.state = target.path / "_kzconsumer"
        self.decisions = self.state / "publishing"
        self._disk = disk
        self.seen: list[str] = []

    def named(self, file: Path, name: Path) -> None:
        if self.target.attempts in name.parents or name.name.startswith("."):
            return
        if name.parent == self.decisions:
            self.seen.append("decision")
            entry = decoded(file)
            for number in range(len(entry.files)):
                staged_name = f"{entry.topic}+{entry.partition}+{number}"
                self._disk.require(self.target.attempts / entry.attempt / staged_name)
        elif self.state not in name.parents:
            self.seen.append("file")
            relative = str(name.relative_to(self.target.path))
            decided = {each: decoded(each) for each in self.decisions.iterdir()}
            self._disk.require(*(each for each, entry in decided.items() if relative in entry.files))
            assert any(relative in entry.files for entry in decided.values())
        elif name.parent == self.state and parsed(name.name) is not None:
            self.seen.append("entry")
            self._disk.require(file, *(self.target.path / each for each in decoded(file).files))
        reason = self._disk.missing(file)
        assert reason is None or reason.startswith("the name"), f"{name} is given to a file that is not synced"

    def removed(self, name: Path) -> None:
        if name.parent == self.decisions:
            self.seen.append("undecided")
            self._disk.require(self.state / name.name)


def decoded(file: Path) -> LedgerEntry:
    return msgspec.json.decode(file.read_bytes(), type=LedgerEntry)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with watched_disk(tmp_path) as made:
        yield made


@pytest.fixture
def order(disk: Disk) -> Order:
    target = Target(disk.root / "deep" / "out")
    target.mark(OWNER)
    made = Order(target, disk)
    disk.on_name, disk.on_removal = made.named, made.removed
    return made


def published(order: Order) -> list[Path]:
    """Published files and ledger entries."""
    files = [file for file in order.target.path.rglob("*.parquet") if order.state not in file.parents]
    return [*files, *(order.state / name for name in os.listdir(order.state) if parsed(name) is not None)]


def test_a_claim_is_on_disk(disk: Disk, order: Order) -> None:
    disk.require(order.target.attempts, order.decisions, order.state / "owner.json")
    order.target.settle_layout("parquet", ["day"])
    disk.require(*order.state.glob("layout-*.json"))


def test_a_publication_is_synced_in_order(disk: Disk, order: Order) -> None:
    attempt = attempt_of(order.target)
    ranges = [staged(attempt, 0, "x", "day=1", "day=2/hour=1"), staged(attempt, 1, "y", ""), staged(attempt, 2, "")]
    assert order.target.publish(ranges, attempt, free) == 3
    assert len(published(order)) == 6
    disk.require(*published(order))
    kinds = ["decision"] * 3 + ["file"] * 3 + ["entry"] * 3 + ["undecided"] * 3
    assert order.seen == kinds


def test_the_decision_of_a_killed_writer_is_carried_out_in_order(disk: Disk, order: Order) -> None:
    """The writer was killed before its decision was synced. A power failure has left that, and no new directories."""
    attempt = attempt_of(order.target)

    class Dies(Exception):
        pass

    calls: list[str] = []

    def lease() -> None:
        calls.append("asked")
        if len(calls) == 2:
            raise Dies

    with pytest.raises(Dies):
        order.target.publish([staged(attempt, 0, "x", "", "day=1", "day=2/hour=1")], attempt, lease)
    assert order.seen == ["decision"]
    for made in sorted(order.target.path.rglob("*=?"), reverse=True):
        assert disk.missing(made)
        made.rmdir()
    other = Target(order.target.path)
    assert other.missing([staged(attempt, 0, "x").part]) == []
    assert len(published(order)) == 4
    disk.require(*published(order))
    assert order.seen == ["decision", "file", "file", "file", "entry", "undecided"]


def test_a_range_kept_aside_is_synced_in_order(disk: Disk, order: Order) -> None:
    assert order.target.set_aside(identity(0), 1)
    disk.require(*published(order))
    assert order.seen == ["decision", "entry", "undecided"]


def test_entries_are_removed_after_the_folded_item_is_on_disk(disk: Disk, order: Order) -> None:
    attempt = attempt_of(order.target)
    ranges = [staged(attempt, 0, "")._replace(part=planned(number)) for number in range(40)]
    assert order.target.publish(ranges, attempt, free) == 40
    removed: list[Path] = []

    def on_removal(name: Path) -> None:
        if order.target.attempts not in name.parents:
            removed.append(name)
            disk.require(*(order.state / "folded").rglob("*.json"))

    disk.on_removal = on_removal
    scratch = order.target.attempts / "scratch"
    scratch.mkdir()
    assert Folder(LedgerItems(order.state)).fold(scratch, lambda entry: True) == len(removed) >= 16


def test_a_claim_and_a_layout_are_written_again_after_a_sync_that_failed(tmp_path: Path) -> None:
    def mark(directory: Path) -> list[Path]:
        target = Target(directory / "out")
        target.mark(OWNER)
        target.settle_layout("parquet", ["day"])
        return [file for file in (directory / "out" / "_kzconsumer").iterdir() if file.suffix == ".json"]

    require_written_again(tmp_path, mark)


def test_a_range_is_written_again_after_a_sync_that_failed(tmp_path: Path) -> None:
    def publish(directory: Path) -> list[Path]:
        target = Target(directory / "out")
        target.mark(OWNER)
        if target.missing([identity(0)]):
            attempt = attempt_of(target, uuid.uuid4().hex)
            target.publish([staged(attempt, 0, "x", "day=1", "day=2")], attempt, free)
        state = directory / "out" / "_kzconsumer"
        return [
            *(directory / "out").glob("day=*/*"),
            *(each for each in state.iterdir() if parsed(each.name) is not None),
        ]

    require_written_again(tmp_path, publish)


def test_a_range_is_set_aside_again_after_a_sync_that_failed(tmp_path: Path) -> None:
    def aside(directory: Path) -> list[Path]:
        target = Target(directory / "out")
        target.mark(OWNER)
        assert target.set_aside(identity(0), 1)
        return [each for each in (directory / "out" / "_kzconsumer").iterdir() if parsed(each.name) is not None]

    require_written_again(tmp_path, aside)
