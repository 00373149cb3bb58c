"""Writers, late writers, those that set ranges aside, and processes that fold: in any order, killed at any call.

In a directory. Published ranges stay published for every reader, whether the entry exists or was folded.
`test_store_machine` is the same in an object store.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kzconsumer_files.directory_target import Target
from kzconsumer_files.ledger import Folder
from kzconsumer_files.range_names import range_name
from tests.support.publication_world import BEFORE, World, ranges_of, require_refused, scheduled, stray_of
from tests.support.stepped_files import stepped_files

pytestmark = pytest.mark.timeout(300)
SCHEDULES = int(os.environ.get("KZCONSUMER_RACES", "60"))
BITS = 1  # an item for every two: few ranges make several levels


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


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_publication_is_exactly_once_in_any_order(quick: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = World(lambda: Target(quick / "out"))
    old = chance.randint(3, 16)
    parts = ranges_of(chance, old + 4)
    for part in parts[:old]:
        world.write(part, "before")
        if chance.random() < 0.2:
            world.target.fold()

    def owner() -> None:
        for before, part in pairwise(parts[old - 1 :]):
            world.write(part, "owner", follows=before)

    def late() -> None:
        world.write(chance.choice(parts[max(0, old - 6) : old + 2]), "late", look_first=chance.random() < 0.3)

    def keeper() -> None:
        world.set_aside(chance.choice(parts[max(0, old - 6) : old + 2]))

    def stray() -> None:
        require_refused(world, stray_of(chance, parts[:old], BEFORE))

    def folder() -> None:
        for _ in range(3):
            world.open().fold()

    def asker() -> None:
        for _ in range(2):
            world.ask()

    programs = {"owner": owner, "late": late, "keeper": keeper, "asker": asker, "stray": stray}
    programs |= {"folder 1": folder, "folder 2": folder}
    with stepped_files() as stepped:
        stepped.run(programs, scheduled(chance, programs))
    world.target.sweep()
    world.require_right(parts)
    for _ in range(3):
        world.target.fold()
        # By which a writer of an earlier epoch knows of the line.
        assert (world.target.attempts.parent / f"{range_name(parts[-1])}.json").exists(), "the newest range is an entry"
    world.require_right(parts)
