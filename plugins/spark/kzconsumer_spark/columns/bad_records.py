"""The quarantine of records that cannot be decoded: one Parquet file for each range; the first writer wins.

Its file is on disk before the range's other records go to the destination.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer.durable_files import publish, staged_name, sync_file
from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_files.range_names import data_file
from kzconsumer_spark.worker_protocol.messages import BatchRange


class QuarantineDiffers(Exception):
    """An earlier attempt has quarantined other records of the range: settings or schemas have changed."""


class Quarantine:
    """One directory, shared by several members. Readers skip names that begin with `_`."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        attempts = path / "_attempts"
        sweep(attempts)
        self._staging = PrivateDirectory(attempts)

    def file(self, part: BatchRange) -> Path:
        return self._path / data_file(part)

    def put(self, part: BatchRange, bad: pa.Table) -> None:
        """Make these rows of a range, with a column `offset`, durable. Raises QuarantineDiffers, OSError."""
        final = self.file(part)
        bad = bad.sort_by("offset")
        offsets: list[Any] = bad.column("offset").to_pylist()
        staged = staged_name(self._staging.path / final.name)
        try:
            pq.write_table(bad, staged, compression="snappy")
            sync_file(staged)
            publish(staged, final)
        finally:
            staged.unlink(missing_ok=True)  # of an attempt that failed: the disk may be full
        self.require_same(part, offsets)

    def require_same(self, part: BatchRange, offsets: list[Any]) -> None:
        """Raises QuarantineDiffers if there is a file with other offsets."""
        final = self.file(part)
        if not final.exists():
            return
        there = pq.read_table(final, columns=["offset"]).column("offset").to_pylist()
        if there != offsets:
            raise QuarantineDiffers(
                f"{part.range}: {len(there)} records were put into {final} by an attempt that did not end, and"
                f" {len(offsets)} are bad now: settings or schemas have changed; move the file away to go on"
            )

    def close(self) -> None:
        self._staging.remove()
