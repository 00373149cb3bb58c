"""A destination as the daemon sees it: whose it is, which one it is, and which ranges it has.

The sink makes one of these and asks it; the worker's side of the same destination writes. All calls block: the sink
makes them in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kzconsumer.errors import PluginError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.function_reference import load_function, load_plain_function
from kzconsumer_files.names import NotOurs, Owner, fingerprint
from kzconsumer_files.publication import KeptAside
from kzconsumer_files.target import Target
from kzconsumer_spark.function_batch import takes_batch
from kzconsumer_spark.messages import To, ToDelta, ToFiles, ToFunction, ToJdbc
from kzconsumer_spark.options import WHERE


class DaemonSide(Protocol):
    """`to` (what the worker is told) and `fingerprint` count once `claim` has returned."""

    @property
    def to(self) -> To: ...

    @property
    def fingerprint(self) -> str:
        """Empty for what cannot be replayed."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether it knows what was published, for ever."""
        ...

    def claim(self, owner: Owner) -> None:
        """Make the destination ready and ours. Raises NotOurs, or OSError when it cannot be reached or written."""
        ...

    def find(self, owner: Owner) -> None:
        """As `claim`, but nothing is made. Raises NotOurs where there is no destination, or another's; OSError."""
        ...

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        """Those that are published. Raises OSError."""
        ...

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Have the range never published; False when it is. Raises OSError."""
        ...


def daemon_side(to: To) -> DaemonSide:
    match to:
        case ToFiles():
            return Files(to)
        case ToDelta():
            return _delta_table(to)
        case ToJdbc():
            return _jdbc_table(to)
        case ToFunction():
            return Functions(to)


class Files:
    """The directory's own id stands for its path: members see one mount under different names, and two machines may
    have different directories of the same name."""

    remembers = True

    def __init__(self, to: ToFiles) -> None:
        self.to = to
        self._target = Target(Path(to.path))
        self._id = ""

    @property
    def fingerprint(self) -> str:
        return fingerprint("files", self._id, self.to.format, self.to.partition_by)

    def claim(self, owner: Owner) -> None:
        self._id = self._target.claim(owner)
        self._target.settle_layout(self.to.format, self.to.partition_by)

    def find(self, owner: Owner) -> None:
        self._id = self._target.find(owner)
        self._target.require_layout(self.to.format, self.to.partition_by)

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        missing = set(self._target.missing(ranges))
        return [each for each in ranges if each not in missing and self._is_published(each)]

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        return self._target.set_aside(part, records)

    def _is_published(self, part: RangeIdentity) -> bool:
        try:
            self._target.require_published(part)
        except KeptAside:
            return False
        return True


class Functions:
    """One that takes the batch is planned: replayed whenever it was not committed, for nobody can ask what it has done.

    Raises ConfigError for what is no plain function of the arguments it is called with.
    """

    def __init__(self, to: ToFunction) -> None:
        self.to = to
        self._planned = takes_batch(load_function(to.function, f"{WHERE} function"))
        arguments = ("df", "batch_id", "batch") if self._planned else ("df", "batch_id")
        load_plain_function(to.function, f"{WHERE} function", *arguments)

    remembers = False

    @property
    def fingerprint(self) -> str:
        return fingerprint("function", self.to.function) if self._planned else ""

    def claim(self, owner: Owner) -> None:
        return None

    def find(self, owner: Owner) -> None:
        raise NotOurs("a function cannot be asked what it has done")

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        return []

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Nobody can keep a member that has lost the partition from calling the function late."""
        return True


def _delta_table(to: ToDelta) -> DaemonSide:
    try:
        from kzconsumer_spark.delta_target import DeltaTarget
    except ImportError as error:
        raise PluginError(
            'kzconsumer-spark: destination "delta" needs deltalake: pip install "kzconsumer-spark[delta]"'
        ) from error
    return DeltaTarget(to)


def _jdbc_table(to: ToJdbc) -> DaemonSide:
    try:
        from kzconsumer_spark.jdbc_table import JdbcTable
    except ImportError as error:
        raise PluginError(
            'kzconsumer-spark: destination "jdbc" needs psycopg: pip install "kzconsumer-spark[jdbc]"'
        ) from error
    return JdbcTable(to)
