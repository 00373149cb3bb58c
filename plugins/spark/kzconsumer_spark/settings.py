"""The settings of the worker's Spark session: local, small, and with those on which exactness rests.

Pure. `session` builds with them, `options` refuses what the user may not set. The user's `conf` comes after our
defaults and before what must hold; nothing of it is overridden silently.
"""

from __future__ import annotations

from typing import Final

from kzconsumer_spark.messages import Start

_DEFAULTS: Final = {
    "spark.app.name": "kzconsumer",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # Spark still writes INT96 if not told; every reader of Parquet knows this one, and it is half as long.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A query of one batch in flight needs no history, and its checkpoint is scratch.
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    # Listing a batch's spool files in the driver is cheaper than in a job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}
# Opening a file "costs" as much as a partition may hold: each spool file is read by one task and written as one file.
_ONE_FILE_PER_RANGE: Final = {
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.speculation": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

#: Keys of `conf` that the user may not set, by destination.
RESERVED: Final[dict[str, frozenset[str]]] = {
    "parquet": frozenset({"spark.master", "spark.local.dir", *_ONE_FILE_PER_RANGE}),
    "function": frozenset({"spark.master", "spark.local.dir"}),
}


def settings(start: Start) -> dict[str, str]:
    """Everything the session is built with."""
    warehouse = {"spark.sql.warehouse.dir": f"{start.scratch}/warehouse"}
    merged = _DEFAULTS | warehouse | start.conf | {"spark.master": start.master, "spark.local.dir": start.scratch}
    if start.destination == "parquet":
        merged |= _ONE_FILE_PER_RANGE
    # What the JVM leaves in its temporary directory goes with the scratch directory, also after a kill.
    merged[_JAVA_OPTIONS] = (
        f'{start.conf.get(_JAVA_OPTIONS, "")} -Djava.io.tmpdir="{start.scratch}" -XX:-UsePerfData'.strip()
    )
    return merged
