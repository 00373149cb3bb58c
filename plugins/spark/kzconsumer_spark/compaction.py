"""Many small files of a target made few, beside members that publish: `kzconsumer sink compact`.

Owns `_kzconsumer/compactions/` of a target and, once it has decided, the files that it replaces. No file system
changes several names in one step, so that a reader which lists the directory meanwhile could see rows twice, or not at
all. Therefore it is made to **fail** then, never to read wrongly: each file that is replaced first becomes one that no
reader of Parquet takes (`_MARK`), then the merged file appears, and only when no listing can be older than that the
marks go. What is decided (`decided.json`, with the merged files beside it) is carried out by whoever comes next, also
when its maker is dead: the next compaction, or the next worker that starts.

Ledger entries stay as they are: a range is known by its entry, never by its files. No writer brings a replaced file
back: only ranges are merged of which nothing is staged any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.sinks.durable_files import sync_directory, write_new
from kzconsumer_spark.merge_plan import File, Union, unions
from kzconsumer_spark.merged_file import NotMergeable, kind_of, write_merged
from kzconsumer_spark.target import Target

# Longer than a magic number and a length, and not empty: Spark passes over files without a byte.
_MARK: Final = (
    b"Replaced by `kzconsumer sink compact` just now. List the directory again: these rows are in another file.\n"
)


class Merged(msgspec.Struct, frozen=True):
    """A file, its rows, and the files whose rows it has, with the number of theirs; names are below the target."""

    file: str
    rows: int
    replaced: tuple[tuple[str, int], ...]


class Compaction(msgspec.Struct, frozen=True):
    """What one run has decided for. `grace` is how long the marks stay, in seconds."""

    merged: tuple[Merged, ...]
    grace: float
    version: int = 1


class Found(NamedTuple):
    """A merged file: where it is to be seen, and where it was staged until the compaction is done."""

    merged: Merged
    staged: Path | None


class Busy(Exception):
    """Another process compacts this target."""


class Compactions:
    """Of one target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._place = target.path / "_kzconsumer" / "compactions"

    def __repr__(self) -> str:
        return f"Compactions({self._target.path})"

    def found(self) -> list[Found]:
        """Every merged file there is, was, or is decided for. Raises OSError."""
        found = []
        for directory in sorted(self._place.glob("*/")):
            for name in ("decided.json", "done.json"):  # the order in which it has them
                try:
                    made = _read(directory / name)
                except FileNotFoundError:
                    continue
                done = name == "done.json"
                found += [
                    Found(each, None if done else _staged(directory, number)) for number, each in enumerate(made.merged)
                ]
                break
        return found

    def broken_off(self) -> bool:
        """Whether one is decided for and not done: it is under way, or its maker is dead."""
        return any(self._place.glob("*/decided.json"))

    def finish(self) -> None:
        """Carry out what a process that is dead has decided for, unless somebody is about it. Raises OSError."""
        if not self.broken_off():
            return
        try:
            with self._alone():
                self._finish()
        except Busy:
            pass

    def plan(self, size: int) -> list[Union]:
        """What would be merged into files of at most about `size` bytes. Raises OSError, NotOurs."""
        current = current_names(self.found())
        entries = [each for each in self._target.entries() if self._target.is_settled(each)]
        return list(unions(entries, current, self._look, size))

    def run(self, size: int, grace: float, show: Callable[[int, int], None]) -> tuple[list[Union], dict[str, str]]:
        """Merge. What was, and what was left alone and why. Raises Busy, OSError, NotOurs.

        `show` is called with bytes read so far and in all, until the files are there to be replaced.
        """
        with self._alone():
            self._finish()
            planned = self.plan(size)
            total = sum(file.size for union in planned for file in union.files)
            directory = self._place / uuid.uuid4().hex
            directory.mkdir()
            made: list[Union] = []
            left: dict[str, str] = {}
            read = 0
            show(read, total)
            for union in planned:
                path = _staged(directory, len(made))
                try:
                    write_merged([self._target.path / file.name for file in union.files], path)
                except NotMergeable as error:
                    path.unlink(missing_ok=True)
                    left[union.name] = str(error)
                else:
                    made.append(union)
                read += sum(file.size for file in union.files)
                show(read, total)
            if made:
                merged = [
                    Merged(each.name, sum(f.rows for f in each.files), tuple((f.name, f.rows) for f in each.files))
                    for each in made
                ]
                sync_directory(directory)
                sync_directory(self._place)
                staged = directory / "deciding.json"
                write_new(staged, msgspec.json.encode(Compaction(tuple(merged), grace)))
                staged.rename(directory / "decided.json")
                sync_directory(directory)
            self._finish()
            return made, left

    def _finish(self) -> None:
        for directory in sorted(self._place.glob("*/")):
            if (directory / "decided.json").exists():
                self._carry_out(directory, _read(directory / "decided.json"))
            elif not (directory / "done.json").exists():
                shutil.rmtree(directory)  # nobody has decided for it

    def _carry_out(self, directory: Path, made: Compaction) -> None:
        """Each step once more does nothing: it may have been done before."""
        top = self._target.path
        directories = {(top / each.file).parent for each in made.merged}
        for each in made.merged:
            if not (top / each.file).exists():
                for name, _ in each.replaced:
                    self._mark(top / name, directory)
        _sync(directories)
        for number, each in enumerate(made.merged):
            if not (top / each.file).exists():
                os.link(_staged(directory, number), top / each.file)
        _sync(directories)
        time.sleep(made.grace)
        for each in made.merged:
            for name, _ in each.replaced:
                (top / name).unlink(missing_ok=True)
        _sync(directories)
        (directory / "decided.json").rename(directory / "done.json")
        for number in range(len(made.merged)):
            _staged(directory, number).unlink(missing_ok=True)
        sync_directory(directory)

    def _mark(self, file: Path, directory: Path) -> None:
        """Also where it is gone: who has deleted it by hand would find its rows again in the merged file."""
        mark = directory / "mark"
        mark.write_bytes(_MARK)
        mark.replace(file)

    def _look(self, name: str) -> File | None:
        path = self._target.path / name
        try:
            footer = pq.read_metadata(path)
            if footer.num_row_groups:
                return File(name, footer.num_rows, path.stat().st_size, kind_of(footer))
        except (OSError, pa.ArrowException):
            pass  # it is `sink verify` that tells of it
        return None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The lock goes with the process that holds it."""
        self._place.mkdir(exist_ok=True)
        with (self._place / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"{self._target.path} is compacted by another process") from None
            yield


def current_names(found: Sequence[Found]) -> Callable[[str], str]:
    """Which file has the rows of one that was published: itself, or what it was merged into, and that in turn."""
    into: Mapping[str, str] = {name: each.merged.file for each in found for name, _ in each.merged.replaced}

    def current(name: str) -> str:
        while name in into:
            name = into[name]
        return name

    return current


def _read(path: Path) -> Compaction:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Compaction)
    except msgspec.DecodeError as error:
        raise OSError(f"{path} cannot be read: {error}") from error


def _staged(directory: Path, number: int) -> Path:
    return directory / f"{number}.parquet"


def _sync(directories: set[Path]) -> None:
    for directory in sorted(directories):
        sync_directory(directory)
