"""Writers, late writers, those that set ranges aside, and processes that fold: in any order, killed at any call.

A range is published once, by one writer, or set aside; published ranges stay published for every reader, whether the
entry exists or was folded; and the ledger's sums are those of the files.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from kzconsumer.model import RangeIdentity
from kzconsumer_files.ledger import Folder
from kzconsumer_files.names import TargetOwner, data_file, named, range_name
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.publication import SetAside, StagedRange
from kzconsumer_files.target import Target
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.batch_ranges import batch_range
from tests.support.published_spans import published_spans
from tests.support.stepped_files import Actor, stepped_files

pytestmark = pytest.mark.timeout(300)
SCHEDULES = int(os.environ.get("KZCONSUMER_RACES", "60"))
BITS = 1  # an item for every two: few ranges make several levels


def planned(first: int, until: int) -> BatchRange:
    return batch_range(first=first, until=until)


def identity(part: BatchRange) -> RangeIdentity:
    return named(range_name(part)).identity()


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def few_for_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = Folder.fold
    monkeypatch.setattr(Folder, "fold", lambda self, scratch, settled: fold(self, scratch, settled, BITS))
    # No power failure here: another test shows that files are removed only after their replacement is on disk.
    for module in ("kzconsumer_files.publication", "kzconsumer_files.ledger"):
        monkeypatch.setattr(f"{module}.sync_directory", lambda path: None)


class World:
    """The target, and what its writers know for certain."""

    def __init__(self, path: Path) -> None:
        self.target = Target(path)
        self.target.mark(TargetOwner(cluster="c", group="g"))
        self.published: set[BatchRange] = set()
        self.aside: set[BatchRange] = set()
        self.writers = 0

    def write(self, part: BatchRange, who: str, *, look_first: bool = True) -> None:
        """As a worker does. Without `look_first` the lookup happened long ago."""
        target = Target(self.target.path)
        if look_first and part not in target.missing([part]):
            self.note(part, lambda: target.require_published(part))
            return
        self.writers += 1
        private = PrivateDirectory(target.attempts)
        attempt = private.path / "1"
        attempt.mkdir()
        file = attempt / "staged"
        file.write_text(f"{who} {self.writers}")
        # Each writer uses another directory for the same rows, as with a column of the current time.
        staged = StagedRange(part, part.records, 0, [(file, f"by={self.writers}/{data_file(part)}")])
        self.note(part, lambda: target.publish([staged], attempt, lambda: None))
        target.discard(attempt)
        private.remove()

    def note(self, part: BatchRange, publish: Callable[[], object]) -> None:
        try:
            publish()
        except SetAside:
            assert part not in self.published
            self.aside.add(part)
        else:
            assert part not in self.aside
            self.published.add(part)

    def set_aside(self, part: BatchRange) -> None:
        if Target(self.target.path).set_aside(identity(part), part.records):
            assert part not in self.published
            self.aside.add(part)
        else:
            assert part not in self.aside
            self.published.add(part)

    def ask(self) -> None:
        """Ranges published before the lookup are in the answers to all lookups."""
        target = Target(self.target.path)
        before, aside = list(self.published), list(self.aside)
        assert target.missing(before) == []
        for part in before:
            target.require_published(part)
        for part in aside:
            with pytest.raises(SetAside):
                target.require_published(part)
        before = list(self.published)
        self.require_in(before, target)

    def require_in(self, parts: Sequence[BatchRange], target: Target) -> None:
        entries, folded = target.ledger()
        spans = [(each.first, each.until) for each in entries if not each.kept_aside]
        spans += [run for _, each in folded for run in each.runs]
        for part in parts:
            found = [span for span in spans if span[0] <= part.first and part.until <= span[1]]
            assert len(found) == 1, (part, sorted(spans))

    def require_right(self, parts: Sequence[BatchRange]) -> None:
        """At the end every range in `parts` is published or set aside, once, and the sums are correct."""
        target = self.target
        for part in parts:
            if part in target.missing([part]):
                self.write(part, "successor")
            else:
                self.note(part, lambda part=part: target.require_published(part))  # type: ignore[misc]
        published = [part for part in parts if part not in self.aside]
        assert self.published == set(published)
        files = sorted(file.name for file in target.path.glob("by=*/t+*"))
        assert files == sorted(data_file(part) for part in published)
        self.require_in(published, target)
        entries, folded = target.ledger()
        mine = [each for each in entries if not each.kept_aside]
        assert len(mine) + sum(each.ranges for _, each in folded) == len(published)
        rows = sum(each.records_out for each in mine) + sum(each.records_out for _, each in folded)
        assert rows == sum(part.records for part in published)
        for one, other in pairwise(parts):
            gap = planned(one.until, other.first)
            assert one.until == other.first or target.missing([gap]) == [gap], "nothing is published there"
            over = planned(one.first, other.until)
            assert one.until == other.first or target.missing([over]) == [over], "not all of it is published"
        spans = published_spans(target, identity(parts[0]))
        assert sum(until - first for first, until in spans) == rows
        assert not list((target.path / "_kzconsumer" / "publishing").iterdir())


def chain(chance: random.Random, count: int) -> list[BatchRange]:
    parts, at, gaps = [], chance.randrange(100), chance.choice([0.05, 0.5])
    for _ in range(count):
        until = at + chance.randint(1, 9)
        parts.append(planned(at, until))
        at = until + (chance.random() < gaps) * 3
    return parts


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_publication_is_exactly_once_in_any_order(quick: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = World(quick / "out")
    old = chance.randint(3, 16)
    parts = chain(chance, old + 4)
    for part in parts[:old]:
        world.write(part, "before")
        if chance.random() < 0.2:
            world.target.fold()

    def owner() -> None:
        for part in parts[old:]:
            world.write(part, "owner")

    def late() -> None:
        world.write(chance.choice(parts[max(0, old - 6) : old + 2]), "late", look_first=chance.random() < 0.3)

    def keeper() -> None:
        world.set_aside(chance.choice(parts[max(0, old - 6) : old + 2]))

    def folder() -> None:
        for _ in range(3):
            Target(world.target.path).fold()

    def asker() -> None:
        for _ in range(2):
            world.ask()

    names = ["owner", "late", "keeper", "asker", "folder 1", "folder 2"]
    ends = {name: chance.randint(1, 120) for name in chance.sample(names, chance.randint(0, 2))}
    # This makes a zombie: suspended at some call until the others have finished.
    stops = {name: chance.randint(1, 60) for name in chance.sample(names, chance.randint(0, 3))}
    current: Actor | None = None

    def choose(left: Sequence[Actor]) -> Actor:
        nonlocal current
        going = [each for each in left if each.calls != stops.get(each.name)]
        if not going:
            stops.clear()
        if current is None or current not in going or chance.random() < 0.1:
            current = chance.choice(going or left)
        current.killed |= current.calls == ends.get(current.name)
        return current

    programs = {"owner": owner, "late": late, "keeper": keeper, "asker": asker, "folder 1": folder, "folder 2": folder}
    with stepped_files() as stepped:
        stepped.run(programs, choose)
    world.target.sweep()
    world.require_right(parts)
    for _ in range(3):
        world.target.fold()
    world.require_right(parts)
