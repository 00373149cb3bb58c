"""Writing batches of ranges into a target: stage the missing ones, publish them, fold the ledger now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity
from kzconsumer_files.names import NotOurs, RecordRange, identity_of
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.targets import AnyTarget

_Records = TypeVar("_Records", bound=RecordRange)

_FOLD_EVERY: Final = 64  # ranges published by this writer
_FOLDING_SECONDS: Final = 2.0  # how long `close` waits for a fold; another process does what is left of it
_log = get_logger("kzconsumer.files")


class Written(NamedTuple):
    """Rows written; ranges published by this write, and ranges that were published already."""

    rows: int
    published: int
    present: int


class TargetWriter:
    """One writer of a target that is claimed, with a directory of its own for staged files. Blocks."""

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
    ) -> Written:
        """Publish all ranges. `stage` writes those that have records and are missing into a new directory.

        Raises DestinationWentBackError if one of `follows` is missing, KeptAside, OSError, and what `stage` and
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
            return Written(0, 0, len(ranges))
        self._attempts += 1
        attempt = self._staging.path / str(self._attempts)
        attempt.mkdir()
        staged = [StagedRange(part, 0, 0, ()) for part in missing if not part.records]
        if with_records := [part for part in missing if part.records]:
            staged += stage(with_records, attempt / "staged")
        published = self._target.publish(staged, attempt, self._require_lease, follows)
        self._target.discard(attempt)
        self._unfolded += published
        if self._unfolded >= _FOLD_EVERY and not self._folding.is_alive():
            self._begin_folding()
        return Written(sum(each.rows for each in staged), published, len(ranges) - published)

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
