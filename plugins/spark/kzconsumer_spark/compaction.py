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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.durable_files import sync_directory, write_new
from kzconsumer.model import RangeIdentity
from kzconsumer_spark.identity import LedgerEntry, entry_of_files, named
from kzconsumer_spark.ledger import Folded, FoldedFiles
from kzconsumer_spark.merge_plan import File, Union, unions
from kzconsumer_spark.merged_file import NotMergeable, kind_of, write_merged
from kzconsumer_spark.target import NotOurs, Target

_DECIDED: Final = "decided.json"
_DONE: Final = "done.json"
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
            for name in (_DECIDED, _DONE):  # the order in which it has them
                try:
                    made = _read(directory / name)
                except FileNotFoundError:
                    continue
                done = name == _DONE
                found += [
                    Found(each, None if done else _staged(directory, number)) for number, each in enumerate(made.merged)
                ]
                break
        return found

    def broken_off(self) -> bool:
        """Whether one is decided for and not done: it is under way, or its maker is dead."""
        return any(self._place.glob(f"*/{_DECIDED}"))

    def finish(self) -> None:
        """Carry out what a process that is dead has decided for, and remove what it had only begun. Raises OSError."""
        if all((directory / _DONE).exists() for directory in self._place.glob("*/")):
            return
        try:
            with self._alone():
                self._finish()
        except Busy:
            pass  # whoever it is finishes it

    def plan(self, size: int) -> list[Union]:
        """What would be merged into files of at most about `size` bytes. Raises OSError, NotOurs."""
        found = self.found()
        entries, folded = self._target.ledger()
        merged = {each.merged.file for each in found}
        used = {name for entry in entries for name in entry.files} | merged

        def is_taken(name: str) -> bool:
            return name in used or os.path.lexists(self._target.path / name)

        settled = [each for each in entries if self._target.is_settled(each)]
        settled += self._of_folded(folded, used - merged)
        return list(unions(settled, current_names(found), self._look, is_taken, size))

    def _of_folded(self, folded: Sequence[tuple[str, Folded]], used: Collection[str]) -> Iterator[LedgerEntry]:
        """Ranges whose entries are folded, by the names of files; those without a file are unknown."""
        top = self._target.path
        there = (file for file in top.rglob("*.parquet") if not file.is_relative_to(self._place.parent))
        names = {str(file.relative_to(top)) for file in there}
        files = FoldedFiles(folded)
        files.add(names.difference(used))
        ranges: dict[RangeIdentity, list[str]] = {}
        for name in sorted(files.names):
            ranges.setdefault(named(PurePath(name).name).identity, []).append(name)
        for part, own in ranges.items():
            yield entry_of_files(part, tuple(own))

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
            try:
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
                    self._decide(directory, made, grace)
            finally:  # also after an error: what was made is removed
                self._finish()
            return made, left

    def _decide(self, directory: Path, made: Sequence[Union], grace: float) -> None:
        merged = [
            Merged(each.name, sum(f.rows for f in each.files), tuple((f.name, f.rows) for f in each.files))
            for each in made
        ]
        staged = directory / "deciding.json"
        write_new(staged, msgspec.json.encode(Compaction(tuple(merged), grace)))
        # No decision may outlive a crash that the files did not.
        for each in (directory, self._place, self._place.parent):
            sync_directory(each)
        staged.rename(directory / _DECIDED)
        sync_directory(directory)

    def _finish(self) -> None:
        for directory in sorted(self._place.glob("*/")):
            if (directory / _DECIDED).exists():
                self._carry_out(directory, _read(directory / _DECIDED))
            elif not (directory / _DONE).exists():
                shutil.rmtree(directory)  # nobody has decided for it
            elif staged := list(directory.glob("*.parquet")):
                _clear(directory, staged)

    def _carry_out(self, directory: Path, made: Compaction) -> None:
        """Each step once more does nothing: it may have been done before."""
        top = self._target.path
        # Somebody may have deleted a whole directory meanwhile: then its rows are not wanted any more.
        there = [
            (_staged(directory, n), each) for n, each in enumerate(made.merged) if (top / each.file).parent.is_dir()
        ]
        directories = {(top / each.file).parent for _, each in there}
        undone = [(staged, each) for staged, each in there if not _is_same(staged, top / each.file)]
        for _, each in undone:
            if os.path.lexists(top / each.file):
                raise OSError(f"{top / each.file} is not the file that was made: nothing is replaced by it")
        # Also for those that are gone: who has deleted one by hand would find its rows again in the merged file.
        going = [top / name for _, each in undone for name, _ in each.replaced]
        marks = [directory / f"mark-{number}" for number in range(len(going))]
        for mark in marks:  # on disk before the first is seen: an empty file readers would pass over
            mark.unlink(missing_ok=True)
            write_new(mark, _MARK)
        for mark, file in zip(marks, going, strict=True):
            self._mark(mark, file)
        _sync(directories)
        for staged, each in undone:
            os.link(staged, top / each.file)
        _sync(directories)
        time.sleep(made.grace)
        for _, each in there:
            for name, _ in each.replaced:
                (top / name).unlink(missing_ok=True)
        _sync(directories)
        (directory / _DECIDED).rename(directory / _DONE)
        _clear(directory, [_staged(directory, number) for number in range(len(made.merged))])

    def _mark(self, mark: Path, file: Path) -> None:
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
        if os.stat(self._place.parent).st_uid != os.getuid():
            raise NotOurs(f"{self._target.path} is written by another user: run this as that one")
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


def _is_same(staged: Path, final: Path) -> bool:
    try:
        return os.path.samefile(staged, final)
    except FileNotFoundError:
        return False


def _clear(directory: Path, staged: Sequence[Path]) -> None:
    """What was merged stays done: from then on the merged files may be replaced in turn."""
    sync_directory(directory)
    for file in staged:
        file.unlink(missing_ok=True)


def _sync(directories: set[Path]) -> None:
    for directory in sorted(directories):
        sync_directory(directory)
