"""Writers of one destination of files, and what they know of it for certain.

A range is published once, by one writer, or set aside; published ranges stay published for every reader; and the
ledger's sums are those of the files.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from kzconsumer.model import RangeIdentity
from kzconsumer_files.directory_target import AnyTarget
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.publication import SetAside, StagedRange
from kzconsumer_files.range_names import RangeOverlap, TargetOwner, data_file, named, range_name
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.batch_ranges import batch_range
from tests.support.published_spans import published_spans
from tests.support.stepped_files import Actor

BEFORE, EPOCH = 0, 1
"""Epochs: before a reset, and that of the world."""


def planned(first: int, until: int, epoch: int = EPOCH) -> BatchRange:
    return batch_range(first=first, until=until, epoch=epoch)


def identity(part: BatchRange) -> RangeIdentity:
    return named(range_name(part)).identity()


class World:
    """The target, and what its writers know for certain."""

    def __init__(self, open_target: Callable[[], AnyTarget], files: int = 1) -> None:
        self.open = open_target
        """As a process does that has just started."""
        self.files = files
        """Of each range."""
        self.target = open_target()
        self.target.mark(TargetOwner(cluster="c", group="g"))
        self.published: set[BatchRange] = set()
        self.aside: set[BatchRange] = set()
        self.writers = 0

    def write(self, part: BatchRange, who: str, *, look_first: bool = True, follows: BatchRange | None = None) -> None:
        """As a worker does. Without `look_first` the lookup happened long ago."""
        target = self.open()
        if look_first and part not in target.missing([part]):
            self.note(part, lambda: target.require_published(part))
            return
        self.writers += 1
        private = PrivateDirectory(target.attempts)
        attempt = private.path / "1"
        attempt.mkdir()
        staged = self.staged(part, attempt, who)
        before = [identity(follows)] if follows is not None else []
        self.note(part, lambda: target.publish([staged], attempt, lambda: None, before))
        target.discard(attempt)
        private.remove()

    def staged(self, part: BatchRange, attempt: Path, who: str) -> StagedRange:
        """Each writer uses other directories for the same rows, as with a column of the current time."""
        found = []
        for number in range(self.files):
            file = attempt / f"staged-{number}"
            file.write_text(f"{who} {self.writers}")
            found.append((file, f"by={self.writers}.{number}/{data_file(part)}"))
        return StagedRange(part, part.records, 0, found)

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
        if self.open().set_aside(identity(part), part.records):
            assert part not in self.published
            self.aside.add(part)
        else:
            assert part not in self.aside
            self.published.add(part)

    def ask(self) -> None:
        """Ranges published before the lookup are in the answers to all lookups."""
        target = self.open()
        before, aside = list(self.published), list(self.aside)
        assert target.missing(before) == []
        for part in before:
            target.require_published(part)
        for part in aside:
            with pytest.raises(SetAside):
                target.require_published(part)
        before = list(self.published)
        self.require_in(before, target)

    def require_in(self, parts: Sequence[BatchRange], target: AnyTarget) -> None:
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
        visible = list(target.visible())
        writers: dict[str, set[bytes]] = {}
        for name in visible:
            with closing(target.open(name)) as file:
                writers.setdefault(os.path.basename(name), set()).add(file.read())
        assert [name for name, texts in writers.items() if len(texts) > 1] == [], "ranges with rows of two writers"
        files = sorted(map(os.path.basename, visible))
        assert files == sorted(data_file(part) for part in published for _ in range(self.files))
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
        assert target.decisions() == []


def ranges_of(chance: random.Random, count: int) -> list[BatchRange]:
    parts, at, gaps = [], chance.randrange(100), chance.choice([0.05, 0.5])
    for _ in range(count):
        until = at + chance.randint(1, 9)
        parts.append(planned(at, until))
        at = until + (chance.random() < gaps) * 3
    return parts


def stray_of(chance: random.Random, parts: Sequence[BatchRange], epoch: int) -> BatchRange:
    """One that overlaps `parts` and is none of them: offsets were set back, or the group's nodes are of before a reset.

    Such nodes are also of an earlier epoch.
    """
    known = {identity(each) for each in parts}
    while True:
        first, until = sorted(chance.sample(range(parts[0].first, parts[-1].until + 5), 2))
        part = planned(first, until, epoch)
        if identity(part) not in known and any(first < each.until and each.first < until for each in parts):
            return part


def require_refused(world: World, part: BatchRange) -> None:
    later = " of a later epoch" if part.epoch < EPOCH else ""
    with pytest.raises(RangeOverlap, match=rf"is not published: it overlaps \[\d+, \d+\){later}, which is"):
        world.write(part, "stray", look_first=False)
    with pytest.raises(RangeOverlap):
        world.open().set_aside(identity(part), 1)


def scheduled(chance: random.Random, names: Collection[str]) -> Callable[[Sequence[Actor]], Actor]:
    """Whose call is next, for `Stepped.run`. Up to two are killed, up to three stopped until the others end."""
    ends = {name: chance.randint(1, 120) for name in chance.sample([*names], chance.randint(0, 2))}
    stops = {name: chance.randint(1, 60) for name in chance.sample([*names], chance.randint(0, 3))}
    switches = chance.choice((0.1, 0.1, 0.5))
    current: Actor | None = None

    def choose(left: Sequence[Actor]) -> Actor:
        nonlocal current
        going = [each for each in left if each.calls != stops.get(each.name)]
        if not going:
            stops.clear()
        if current is None or current not in going or chance.random() < switches:
            current = chance.choice(going or left)
        current.killed |= current.calls == ends.get(current.name)
        return current

    return choose


def in_turn(turns: Sequence[tuple[str, int]]) -> Callable[[Sequence[Actor]], Actor]:
    """For `Stepped.run`: an actor for this many calls, or to its end, then the next one."""
    left = deque(turns)
    done = 0

    def choose(actors: Sequence[Actor]) -> Actor:
        nonlocal done
        while left:
            name, calls = left[0]
            actor = next((each for each in actors if each.name == name), None)
            if actor is not None and done <= calls:
                done += 1
                return actor
            left.popleft()
            done = 0
        return actors[0]

    return choose
