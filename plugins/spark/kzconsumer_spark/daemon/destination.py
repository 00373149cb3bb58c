"""The destination as the daemon sees it: its owner, its identity, and the ranges that it has.

The destination of the same kind in the worker writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread

from kzconsumer.errors import ConfigError, PluginError, SinkError
from kzconsumer.installation import pip_install
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.function_reference import load_function, load_plain_function
from kzconsumer_files.destination import TargetDestination
from kzconsumer_files.names import NotOurs, Owner, fingerprint
from kzconsumer_files.object_store import StoreUnavailable
from kzconsumer_files.options import require_usable as require_place
from kzconsumer_files.overlap import Overlap
from kzconsumer_spark.daemon.options import WHERE, SparkOptions
from kzconsumer_spark.function.batch import takes_batch
from kzconsumer_spark.pipe.messages import To, ToDelta, ToFiles, ToFunction, ToIceberg, ToJdbc

_Answer = TypeVar("_Answer")
_log = get_logger("kzconsumer.spark")


class ClaimedDestination(Protocol):
    """All calls block. `to`, which goes to the worker, and `fingerprint` are valid once `claim` has returned."""

    @property
    def to(self) -> To: ...

    @property
    def fingerprint(self) -> str:
        """Empty for a destination that cannot be replayed."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether it has a ledger of all published ranges."""
        ...

    def claim(self, owner: Owner) -> None:
        """Make the destination if need be, and record its owner. Raises NotOurs, OSError."""
        ...

    def find(self, owner: Owner) -> None:
        """As `claim`, but nothing is made. Raises NotOurs, also if there is no destination; OSError."""
        ...

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        """Those that are published. Raises OSError."""
        ...

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Keep the range from ever being published; False if it is published. Raises OSError."""
        ...


def require_usable(to: To, conf: Mapping[str, str]) -> None:
    """Raises ConfigError if the directory of files or of a Delta table cannot be written, if a catalog is not known or
    its packages are missing, or if the password or the driver of a database is missing. Makes nothing."""
    match to:
        case ToFiles() | ToDelta():
            require_place(to.path)
        case ToIceberg():
            from kzconsumer_spark.iceberg.drivers import require_drivers  # pyiceberg is an extra

            require_drivers(to)
        case ToJdbc():
            from kzconsumer_spark.jdbc.database import require_secrets  # psycopg is an extra
            from kzconsumer_spark.jdbc.driver import require_driver

            require_secrets(to)
            require_driver(conf)


def claimed_destination(to: To) -> ClaimedDestination:
    match to:
        case ToFiles():
            return Files(to)
        case ToDelta():
            with _needing("delta", "deltalake"):
                from kzconsumer_spark.delta.target import DeltaTarget
            return DeltaTarget(to)
        case ToIceberg():
            with _needing("iceberg", "pyiceberg"):
                from kzconsumer_spark.iceberg.target import IcebergTarget
            return IcebergTarget(to)
        case ToJdbc():
            with _needing("jdbc", "psycopg"):
                from kzconsumer_spark.jdbc.table import JdbcTable
            return JdbcTable(to)
        case ToFunction():
            return Functions(to)


def claim(destination: ClaimedDestination, owner: Owner) -> None:
    """Raises ConfigError if that is not possible, SinkError if a store does not answer."""
    try:
        destination.claim(owner)
    except NotOurs as error:
        raise ConfigError([f"{WHERE}: {error}"]) from error
    except StoreUnavailable as error:
        raise SinkError(f"{WHERE}: {error}") from error
    except OSError as error:
        where = f" {error.filename} cannot be used:" if error.filename else ""
        raise ConfigError([f"{WHERE}:{where} {error.strerror or error}"]) from error


async def answer(question: Callable[[], _Answer], options: SparkOptions) -> _Answer:
    """Ask a destination in a thread, with retries: a database may be restarting. Raises SinkError.

    If it is cancelled, the thread still runs to completion.
    """
    reason: OSError | None = None
    for attempt, pause in options.tries():
        try:
            return await anyio.to_thread.run_sync(question, abandon_on_cancel=True)
        except Overlap as error:  # a retry would find the same
            raise SinkError(f"{WHERE}: {error}") from error
        except OSError as error:
            reason = error
            _log.warning("ledger of the destination cannot be read", attempt=attempt, error=str(error))
        await anyio.sleep(pause)
    tried = f"{options.attempts} attempts"
    raise SinkError(f"{WHERE}: the destination's ledger could not be read in {tried}: {reason}") from reason


class Files(TargetDestination):
    def __init__(self, to: ToFiles) -> None:
        super().__init__(to.path, to.format, to.partition_by, to.store_options)
        self.to = to


class Functions:
    """A function of the user. With three parameters, its ranges are planned and replayed if they were not committed.

    Raises ConfigError if it is not a plain function of the arguments it is called with.
    """

    remembers = False

    def __init__(self, to: ToFunction) -> None:
        self.to = to
        self._planned = takes_batch(load_function(to.function, f"{WHERE} function"))
        arguments = ("df", "batch_id", "batch") if self._planned else ("df", "batch_id")
        load_plain_function(to.function, f"{WHERE} function", *arguments)

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
        """Always True. A member that has lost the partition may still call the function."""
        return True


@contextmanager
def _needing(destination: str, package: str) -> Iterator[None]:
    """Around the import of a destination that is an extra. Raises PluginError."""
    try:
        yield
    except ImportError as error:
        raise PluginError(
            f'kzconsumer-spark: destination "{destination}" needs {package}:'
            f" {pip_install(destination, 'kzconsumer-spark')}"
        ) from error
