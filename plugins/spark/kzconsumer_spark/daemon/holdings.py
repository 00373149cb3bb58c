"""What the destination of a Spark sink holds, by the kind of destination; with the records in its quarantine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.sinks.reports import HeldRange
from kzconsumer_files.holdings import Held, files
from kzconsumer_files.names import NotOurs, data_file
from kzconsumer_files.targets import target_at
from kzconsumer_spark.pipe.messages import To, ToDelta, ToFiles, ToFunction, ToIceberg, ToJdbc


def described(to: To) -> str:
    match to:
        case ToFiles():
            return f"{to.format} files in {to.path}"
        case ToDelta():
            return f"Delta table {to.path}"
        case ToIceberg():
            return f"Iceberg table {to.table} of catalog {to.catalog}"
        case ToJdbc():
            return f"table {to.table} at {to.url.removeprefix('jdbc:')}"
        case ToFunction():
            return f"function {to.function}"


def held_by(to: To, quarantine: str | None, count_rows: bool) -> Held:
    """What the destination holds. `quarantine` is where the records that could not be decoded are. Raises OSError."""
    match to:
        case ToFiles():
            found = files(target_at(to.path, to.store_options), to.format, count_rows)
        case ToDelta():
            from kzconsumer_spark.delta.holdings import held

            found = held(to, count_rows)
        case ToIceberg():
            from kzconsumer_spark.iceberg.holdings import held as held_by_iceberg

            found = held_by_iceberg(to, count_rows)
        case ToJdbc():
            from kzconsumer_spark.jdbc.holdings import JdbcHoldings

            found = JdbcHoldings(to).held(count_rows)
        case ToFunction():
            raise NotOurs("a function cannot be asked what it has done")
    if not count_rows or quarantine is None:
        return found
    return found._replace(ranges=tuple(_with_bad(each, Path(quarantine)) for each in found.ranges))


def finish(to: To) -> None:
    """Carry out the decisions of writers that may be dead. Raises OSError if that fails."""
    if isinstance(to, ToFiles):
        target_at(to.path, to.store_options).finish()


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
