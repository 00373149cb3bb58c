"""The destination as the daemon sees it: its owner, its identity, and the ranges that it has.

The destination of the same kind in the worker writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.errors import ConfigError, PluginError, SinkError
from kzconsumer.installation import pip_install
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity
from kzconsumer.plugins import load_function, load_plain_function
from kzconsumer.sinks.interface import Batch, HeldRange, Preview, RangeData
from kzconsumer_files.directory_target import target_at
from kzconsumer_files.holdings import Held, files
from kzconsumer_files.object_store import StoreUnavailable
from kzconsumer_files.parquet import record_table
from kzconsumer_files.range_names import NotOurs, RangeOverlap, TargetOwner, data_file, fingerprint
from kzconsumer_files.target_writer import TargetDestination
from kzconsumer_files.target_writer import require_usable as require_place
from kzconsumer_spark.daemon.requirements import make_scratch
from kzconsumer_spark.daemon.sink_options import WHERE, SparkOptions
from kzconsumer_spark.daemon.worker_process import end_session, worker_environment
from kzconsumer_spark.destinations.function_batch import takes_batch
from kzconsumer_spark.worker_protocol.messages import (
    Failed,
    PreviewRequest,
    StartWorker,
    To,
    ToDelta,
    ToFiles,
    ToFunction,
    ToIceberg,
    ToJdbc,
)
from kzconsumer_spark.worker_protocol.spark_settings import is_cluster

_Answer = TypeVar("_Answer")
_log = get_logger("kzconsumer.spark")


class MarkedDestination(Protocol):
    """All calls block. `to`, which goes to the worker, and `fingerprint` are valid once `mark` has returned."""

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

    def mark(self, owner: TargetOwner) -> None:
        """Make the destination if need be, and record its owner. Raises NotOurs, OSError."""
        ...

    def find(self, owner: TargetOwner) -> None:
        """As `mark`, but nothing is made. Raises NotOurs, also if there is no destination; OSError."""
        ...

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        """Those that are published. Raises OSError."""
        ...

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Keep the range from ever being published; False if it is published. Raises OSError."""
        ...

    def require_usable(self, conf: Mapping[str, str]) -> None:
        """Raises ConfigError for what can be found wrong without it: a directory that cannot be written, a catalog that
        is not known, a package, password or driver that is missing. Makes nothing."""
        ...

    def held(self, count_rows: bool) -> Held:
        """What it holds once `find` has returned, with each range's rows if `count_rows`. Raises OSError, NotOurs."""
        ...

    def finish(self) -> None:
        """Carry out the decisions of writers that may be dead. Raises OSError if that fails."""
        ...


def destination_for(to: To) -> MarkedDestination:
    match to:
        case ToFiles():
            return Files(to)
        case ToDelta():
            with _needing("delta", "deltalake"):
                from kzconsumer_spark.destinations.delta_table import DeltaTarget
            return DeltaTarget(to)
        case ToIceberg():
            with _needing("iceberg", "pyiceberg"):
                from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
            return IcebergTarget(to)
        case ToJdbc():
            with _needing("jdbc", "psycopg"):
                from kzconsumer_spark.destinations.jdbc_table import JdbcHoldings
            return JdbcHoldings(to)
        case ToFunction():
            return Functions(to)


def mark(destination: MarkedDestination, owner: TargetOwner) -> None:
    """Raises ConfigError if that is not possible, SinkError if a store does not answer."""
    try:
        destination.mark(owner)
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
        except RangeOverlap as error:  # a retry would find the same
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

    def require_usable(self, conf: Mapping[str, str]) -> None:
        require_place(self.to.path)

    def held(self, count_rows: bool) -> Held:
        return files(target_at(self.to.path, self.to.store_options), self.to.format, count_rows)

    def finish(self) -> None:
        target_at(self.to.path, self.to.store_options).finish()


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

    def mark(self, owner: TargetOwner) -> None:
        return None

    def find(self, owner: TargetOwner) -> None:
        raise NotOurs("a function cannot be asked what it has done")

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        return []

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Always True. A member that has lost the partition may still call the function."""
        return True

    def require_usable(self, conf: Mapping[str, str]) -> None:
        return None

    def held(self, count_rows: bool) -> Held:
        raise NotOurs("a function cannot be asked what it has done")

    def finish(self) -> None:
        return None


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


def _with_bad(held: HeldRange, quarantine: Path) -> HeldRange:
    """With a fault if quarantine and ledger differ in the number of records; not checked for folded ranges."""
    if not held.records_quarantined or held.ranges > 1:
        return held
    file = quarantine / data_file(held.identity)
    try:
        there = pq.read_metadata(file).num_rows
    except FileNotFoundError:
        return held  # removed by the operator
    except (OSError, pa.ArrowException) as error:
        return _faulty(held, f"{file} cannot be read: {error}")
    if there == held.records_quarantined:
        return held
    return _faulty(held, f"{file} holds {there} records, the ledger says {held.records_quarantined}")


def _faulty(held: HeldRange, fault: str) -> HeldRange:
    return msgspec.structs.replace(held, faults=(*held.faults, fault))


# What the sink reports to an operator: what the destination holds, and what it would write of given records.


def held(
    destination: MarkedDestination,
    find: Callable[[], None],
    options: SparkOptions,
    *,
    finish: bool,
    count_rows: bool,
) -> Held:
    """What the destination holds once `find` has found it. Blocks. With `finish` decisions are carried out first.

    Raises SinkError.
    """
    try:
        find()
        if finish:
            destination.finish()
        found = destination.held(count_rows)
        if count_rows and (quarantine := options.columns.quarantine) is not None:
            found = found._replace(ranges=tuple(_with_bad(each, Path(quarantine)) for each in found.ranges))
    except (NotOurs, OSError) as error:
        raise SinkError(f"{WHERE}: {error}") from error
    return found


async def preview(batch: Batch, options: SparkOptions, start: Callable[[str, int], StartWorker]) -> Preview:
    """Have a Spark process of its own shape the batch. Raises ConfigError, SinkError."""
    scratch = await anyio.to_thread.run_sync(make_scratch, options)
    try:
        files = await anyio.to_thread.run_sync(_written, scratch.path, batch.ranges)
        alone = msgspec.structs.replace(start(str(scratch.path / "preview"), 0), ui=False, event_log=None)
        if is_cluster(options.master):  # its executors would not see the files
            alone = msgspec.structs.replace(alone, master="local[2]")
        request = PreviewRequest(start=alone, files=files)
        with anyio.fail_after(options.start_timeout):
            return await run_preview(request, worker_environment(options.conf))
    except TimeoutError as error:
        wait = f"{options.start_timeout:g} s"
        raise SinkError(f"Spark was not done within {wait}: raise [sink.options] start_timeout") from error
    except OSError as error:
        raise SinkError(f"cannot write the records for Spark: {error}") from error
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(scratch.remove)


def _written(directory: Path, ranges: Sequence[RangeData]) -> tuple[str, ...]:
    """A Parquet file of each range that has records. Their names do not begin with a topic's, which may hide them."""
    files = {directory / f"{number}.parquet": part for number, part in enumerate(ranges) if part.records}
    for file, part in files.items():
        pq.write_table(record_table(part), file, store_schema=False)
    return tuple(map(str, files))


async def run_preview(request: PreviewRequest, environment: Mapping[str, str]) -> Preview:
    """Raises ConfigError for settings that Spark refuses, SinkError with a reason."""
    command = [sys.executable, "-m", "kzconsumer_spark.worker.preview"]
    async with await anyio.open_process(command, stderr=None, env=environment, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            await process.stdin.send(msgspec.json.encode(request))
            await process.stdin.aclose()
            said = b"".join([part async for part in process.stdout])
        except OSError as error:
            raise SinkError("the Spark process died") from error
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(end_session, process.pid)
    try:
        return msgspec.json.decode(said, type=Preview)
    except msgspec.DecodeError:
        pass
    try:
        failed = msgspec.json.decode(said, type=Failed)
    except msgspec.DecodeError as error:
        raise SinkError("the Spark process died") from error
    if failed.settings:
        raise ConfigError([failed.error])
    raise SinkError(failed.error)
