"""A target of files as sinks use it: missing ranges are staged and published, the ledger is folded now and then.

Also its owner, its identity and what it has (`TargetDestination`), and the options of a place that must be usable.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from kzconsumer.errors import ConfigError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity
from kzconsumer_files.directory_target import AnyTarget, target_at
from kzconsumer_files.object_store import is_object_store
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.publication import SetAside, StagedRange
from kzconsumer_files.range_names import NotOurs, RecordRange, TargetOwner, fingerprint, identity_of

_Records = TypeVar("_Records", bound=RecordRange)

FOLD_EVERY: Final = 64  # ranges published by this writer
_FOLDING_SECONDS: Final = 2.0  # how long `close` waits for a fold; another process does what is left of it
_log = get_logger("kzconsumer.files")


class WriteResult(NamedTuple):
    """Rows written; ranges published by this write, and ranges that were published already."""

    rows: int
    published: int
    present: int


class TargetWriter:
    """One writer of a target that is marked, with a directory of its own for staged files. Blocks."""

    def __init__(self, target: AnyTarget, require_lease: Callable[[], None]) -> None:
        """`require_lease` returns while the partitions are certainly ours, and raises or waits if they may not be."""
        self._target = target
        self._require_lease = require_lease
        self._target.sweep()
        self._begin_folding()
        self._staging = PrivateDirectory(target.attempts)
        self._attempts = 0

    def write(
        self,
        ranges: Sequence[_Records],
        stage: Callable[[Sequence[_Records], Path], Sequence[StagedRange]],
        follows: Sequence[RangeIdentity] = (),
    ) -> WriteResult:
        """Publish all ranges. `stage` writes those that have records and are missing into a new directory.

        Raises DestinationWentBackError if one of `follows` is missing, SetAside, OSError, and what `stage` and
        `require_lease` raise.
        """
        for failed in self._staging.entries():
            self._target.discard(failed)
        missing = self._target.missing(ranges)
        unpublished = {identity_of(part) for part in missing}
        for part in ranges:
            if identity_of(part) not in unpublished:
                self._target.require_published(part)
        if not missing:
            return WriteResult(0, 0, len(ranges))
        self._attempts += 1
        attempt = self._staging.path / str(self._attempts)
        attempt.mkdir()
        staged = [StagedRange(part, 0, 0, ()) for part in missing if not part.records]
        if with_records := [part for part in missing if part.records]:
            staged += stage(with_records, attempt / "staged")
        published = self._target.publish(staged, attempt, self._require_lease, follows)
        self._target.discard(attempt)
        self._unfolded += published
        if self._unfolded >= FOLD_EVERY and not self._folding.is_alive():
            self._begin_folding()
        return WriteResult(sum(each.rows for each in staged), published, len(ranges) - published)

    def trial(self, stage: Callable[[Path], object]) -> None:
        """Have files staged as by `write`, and remove them. Raises what `stage` raises."""
        for failed in self._staging.entries():
            self._target.discard(failed)
        attempt = self._staging.path / "trial"
        attempt.mkdir()
        stage(attempt / "staged")
        self._target.discard(attempt)

    def close(self) -> None:
        self._folding.join(_FOLDING_SECONDS)
        if self._target.discard(self._staging.path):  # otherwise the sweep of the next writer tries again
            self._staging.remove()

    def _begin_folding(self) -> None:
        self._unfolded = 0
        self._folding = threading.Thread(target=_fold, args=(self._target,), daemon=True)
        self._folding.start()


def _fold(target: AnyTarget) -> None:
    try:
        target.fold()
    except (OSError, NotOurs) as error:  # the ledger is only larger than it need be
        _log.warning("ledger not folded", error=str(error))


_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class TargetDestination:
    """Files of one format in one layout.

    The fingerprint is valid once `mark` or `find` has returned. It contains the id of the directory instead of its
    path: members may mount one directory under different names, and two machines may have directories of one name.
    """

    remembers = True

    def __init__(
        self, path: str, kind: str, partition_by: tuple[str, ...] = (), store_options: Mapping[str, str] = _NONE
    ) -> None:
        self.target = target_at(path, store_options)
        self._kind = kind
        self._partition_by = partition_by
        self._id = ""

    @property
    def fingerprint(self) -> str:
        return fingerprint("files", self._id, self._kind, self._partition_by)

    def mark(self, owner: TargetOwner) -> None:
        """Make the directory if need be, and mark it as `owner`'s. Raises NotOurs, OSError."""
        self._id = self.target.mark(owner)
        self.target.settle_layout(self._kind, self._partition_by)

    def find(self, owner: TargetOwner) -> None:
        """As `mark`, but nothing is made. Raises NotOurs, also if there is no target; OSError."""
        self._id = self.target.find(owner)
        self.target.require_layout(self._kind, self._partition_by)

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        """Those that are published. Raises OSError."""
        missing = set(self.target.missing(ranges))
        return [each for each in ranges if each not in missing and self._is_published(each)]

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Keep the range from ever being published; False if it is published. Raises OSError."""
        return self.target.set_aside(part, records)

    def _is_published(self, part: RangeIdentity) -> bool:
        try:
            self.target.require_published(part)
        except SetAside:
            return False
        return True


def unusable(why: str) -> ConfigError:
    return ConfigError([f"[sink.options] path: {why}"])


def read_place(value: object) -> object:
    """An absolute directory, or the URI of an object store."""
    if not isinstance(value, str) or not value or is_object_store(value):
        return value
    return str(Path(value).absolute())


def require_usable(path: str) -> None:
    """Check that a directory is writable or could be made, without changing anything. Raises ConfigError.

    Of a URI nothing is known before it is used.
    """
    if is_object_store(path):
        return
    try:
        there = next(each for each in (Path(path), *Path(path).absolute().parents) if each.exists())
        if not there.is_dir():
            raise unusable(f"{path} cannot be used: {there} is not a directory")
        if not os.access(there, os.W_OK | os.X_OK):
            if os.statvfs(there).f_flag & os.ST_RDONLY:
                why = f"{there} is mounted read-only (for a unit of systemd: ReadWritePaths=)"
            else:
                why = f"{there} is not writable for this user"
            raise unusable(f"{path} cannot be used: {why}")
    except OSError as error:
        raise unusable(f"{path} cannot be used: {error.strerror}") from error
