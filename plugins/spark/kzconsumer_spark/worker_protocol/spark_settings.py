"""The settings of the worker's Spark session: a small Spark, and settings on which exactly-once depends.

The user's `conf` overrides the defaults; it cannot contain settings that the sink needs (`RESERVED`).
"""

from __future__ import annotations

import os
import re
import socket
import zoneinfo
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, TypeAlias

from kzconsumer_spark.worker_protocol.messages import StartWorker, ToDelta, ToFiles, ToFunction, ToIceberg, ToJdbc

# A cluster as the master needs options, and an address by which it reaches the driver.

STANDALONE: Final = re.compile(r"spark://([^\s,/]+:\d+)(,[^\s,/]+:\d+)*")
_KUBERNETES: Final = re.compile(r"k8s://(https?://)?[^\s,/]+:\d+")
_IMAGES: Final = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")


def is_cluster(master: str | None) -> bool:
    """Whether executors are other processes than the driver, which is the worker itself (client mode)."""
    named = master or ""
    return named == "yarn" or STANDALONE.fullmatch(named) is not None or _KUBERNETES.fullmatch(named) is not None


def require_whole(master: str, conf: Mapping[str, str]) -> None:
    """Raises ValueError for what a cluster needs and is missing."""
    if conf.get("spark.submit.deployMode", "client") != "client":
        raise ValueError(
            "conf.spark.submit.deployMode: only client is supported, the driver is the member's own worker"
        )
    if STANDALONE.fullmatch(master) and "spark.cores.max" not in conf:
        raise ValueError(
            f'conf is without spark.cores.max: master "{master}" gives all cores to the first member that comes,'
            " and the others wait for ever"
        )
    if _KUBERNETES.fullmatch(master):
        _require_pods(master, conf)


def _require_pods(master: str, conf: Mapping[str, str]) -> None:
    if not any(image in conf for image in _IMAGES):
        raise ValueError(f'conf is without {_IMAGES[0]}: master "{master}" starts executors from that image')
    for key in conf:
        # Spark passes these as variables of the executors' pods.
        if key.startswith("spark.ssl.") and key.endswith("assword"):
            raise ValueError(f"conf.{key} cannot be set with Kubernetes: everybody who sees a pod could read it")


def local_address(master: str) -> str:
    """Of this machine, the address from which packets to the (first) master go. Nothing is sent. Raises OSError."""
    host, _, port = master.rpartition("://")[2].partition(",")[0].rpartition(":")
    kind, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


Codec: TypeAlias = Literal["none", "snappy", "gzip", "zstd", "brotli", "lz4"]
#: What Spark's writer of Parquet calls them, and Arrow's: of files that tasks write into an object store.
CODECS: Final[Mapping[str, Codec]] = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "brotli": "brotli",
    "lz4_raw": "lz4",
}
PARQUET_CODEC: Final = "spark.sql.parquet.compression.codec"


def codec_of(write_options: Mapping[str, str], conf: Mapping[str, str]) -> str:
    """The codec of files that tasks write. Raises ValueError for another option of Spark's writer, which they lack."""
    codec = conf.get(PARQUET_CODEC, "snappy")
    for key, value in write_options.items():
        if key.lower() != "compression":
            raise ValueError(f"write_options.{key}: into an object store a cluster writes without Spark's writer")
        codec = value
    if codec.lower() not in CODECS:
        raise ValueError(f'compression "{codec}" is not one of {", ".join(CODECS)}')
    return codec.lower()


def location(place: Path | str) -> str:
    """A URI as it is, a path with its scheme: without one it is in the default file system, on YARN mostly HDFS.

    Not `Path.as_uri`: Hadoop takes percent signs as they are.
    """
    return f"file://{place}" if str(place).startswith("/") else str(place)


_DEFAULTS: Final = {
    "spark.driver.memory": "1g",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # Spark's default is INT96; every reader of Parquet knows this one, and it is half as long.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A query of one batch in flight needs no history, and its checkpoint is scratch.
    "spark.sql.streaming.minBatchesToRetain": "2",
    # An idle query looks for a batch that often: a look takes some 3 ms of a processor.
    "spark.sql.streaming.pollingDelay": "90ms",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
# Spark's own runs `chmod` for each file and for each file's checksum, which nobody reads: an eighth of the processor
# time at 1 KiB a record.
_LOCAL_FILES: Final = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"}
# A local Spark must not be reachable from outside; the executors of a cluster must reach their driver.
_LOCAL_DEFAULTS: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_UNIX_SOCKETS: Final = "spark.python.unix.domain.socket"
# In bytes, Spark's limit for their directory: a socket's path has at most 107 in Linux, 103 in macOS.
_LONGEST_PLACE: Final = 60
# Executors start Python as the local Spark does by a script, which would have to be on all their machines.
_CLUSTER_DEFAULTS: Final = {"spark.python.daemon.module": "kzconsumer_spark.executors.python_daemon"}
_ONE_FILE_PER_TASK: Final = {
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.speculation": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
    # With 2 the files of a task stay that Spark runs again, because the notice of their end arrived late or never.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_EXECUTOR_JAVA_OPTIONS: Final = "spark.executor.extraJavaOptions"
# Java's Arrow checks each access to a value, and that it is not null, which Spark asks before: a quarter of Java's
# processor time at 1 KiB a record, a seventh at 100 B. The batches are those of our own tasks, with valid offsets.
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
# Up to the default, as it is mostly written.
_SMALL_HEAP: Final = re.compile(r"\d{1,3}m|1024m|1g", re.IGNORECASE)
# Where users set options of every Java, or of every Spark.
_JAVA_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
_ZONE: Final = "spark.sql.session.timeZone"
_OFFSET: Final = re.compile(r"([+-])((0[0-9]|1[0-7]):[0-5][0-9]|18:00)")

_FILES_DEFAULTS: Final = {
    # Each open file is a writer with buffers of its own; with more of them than this a task sorts its rows first.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # For each row that goes to Python, Spark 4.3 adds up the size of its batch, and in a column of lists, such as the
    # headers, it looks at all rows since the last one that is not null: with Spark's 10,000 rows that was two thirds of
    # the processor time of tasks that put files.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}
# A task that staged its rows fails when it is run again: the batch has attempts of its own.
_EACH_TASK_ONCE: Final = {"spark.speculation": "false", "spark.task.maxFailures": "1"}
_ALWAYS: Final = frozenset({"spark.master", "spark.local.dir"})

#: Keys of `conf` that the user may not set, by the kind of destination.
RESERVED: Final[dict[type, frozenset[str]]] = {
    ToFiles: _ALWAYS | _ONE_FILE_PER_TASK.keys(),
    ToDelta: _ALWAYS | _ONE_FILE_PER_TASK.keys(),
    ToIceberg: _ALWAYS | _ONE_FILE_PER_TASK.keys(),
    ToJdbc: _ALWAYS | _EACH_TASK_ONCE.keys(),
    ToFunction: _ALWAYS,
}


def time_zone(conf: Mapping[str, str]) -> str:
    """In which timestamps become dates and text. Not the machine's: members of a group may run in different ones."""
    return conf.get(_ZONE, "UTC")


def require_zone(conf: Mapping[str, str]) -> None:
    """Raises ValueError for a time zone that Spark, Java and Python may read as different ones, such as `UTC+2`."""
    zone = time_zone(conf)
    if zone == "UTC" or _OFFSET.fullmatch(zone):
        return
    known = zoneinfo.available_timezones()
    if not known:
        raise ValueError(
            f'conf.{_ZONE}: "{zone}" cannot be checked: this machine has no time zone database; install tzdata,'
            " or give UTC or an offset such as +05:30"
        )
    if zone not in known:
        raise ValueError(
            f'conf.{_ZONE}: "{zone}" is not UTC, an offset such as +05:30 (at most 18:00)'
            " or the name of a time zone such as Europe/Berlin"
        )


def require_one_time(conf: Mapping[str, str]) -> None:
    """Raises ValueError for a time zone in which ORC, which has local times, would have one for two instants."""
    zone = time_zone(conf)
    if zone != "UTC" and not _OFFSET.fullmatch(zone):
        raise ValueError(
            f'conf.{_ZONE}: "{zone}" does not go with ORC, whose times are local: those of the hour that comes twice'
            " would be one; give UTC or an offset such as +05:30"
        )


def environment_zone(conf: Mapping[str, str]) -> str:
    """The same as the variable TZ has it, for Python processes; signs of offsets mean the opposite there."""
    zone = time_zone(conf)
    offset = _OFFSET.fullmatch(zone)
    return zone if offset is None else f"<{zone.replace(':', '')}>{'-' if offset[1] == '+' else '+'}{offset[2]}"


def ui_settings(ui: bool | int) -> dict[str, str]:
    """`ui`: whether Spark serves its pages, or the port where. They only show: nothing can be ended there."""
    if ui is False:
        return {"spark.ui.enabled": "false"}
    port = {} if ui is True else {"spark.ui.port": str(ui)}
    return {"spark.ui.enabled": "true", "spark.ui.killEnabled": "false"} | port


def event_log_settings(directory: str | None) -> dict[str, str]:
    """In files of at most 128 MB, since a member may run for months; a history server removes old ones."""
    if directory is None:
        return {}
    return {"spark.eventLog.enabled": "true", "spark.eventLog.dir": directory, "spark.eventLog.rolling.enabled": "true"}


def settings(start: StartWorker) -> dict[str, str]:
    """Everything the session is built with."""
    zone = {_ZONE: time_zone(start.conf), "spark.executorEnv.TZ": environment_zone(start.conf)}
    of_master = _CLUSTER_DEFAULTS if is_cluster(start.master) else _LOCAL_DEFAULTS | _unix_sockets(start.scratch)
    defaults = _DEFAULTS | zone | of_master
    defaults |= {"spark.app.name": start.name} | ui_settings(start.ui) | event_log_settings(start.event_log)
    warehouse = {"spark.sql.warehouse.dir": location(f"{start.scratch}/warehouse")}
    own = {"spark.master": start.master, "spark.local.dir": start.scratch}
    match start.destination:
        case ToFiles() | ToDelta() | ToIceberg():
            files = _FILES_DEFAULTS | (_LOCAL_FILES if _is_local(start) else {})
            merged = defaults | files | warehouse | start.conf | own | _ONE_FILE_PER_TASK
        case ToJdbc():
            merged = defaults | warehouse | start.conf | own | _EACH_TASK_ONCE
        case ToFunction():
            merged = defaults | warehouse | start.conf | own
    # ORC gets what Java's own says.
    java = f"-Duser.timezone={'GMT' if _OFFSET.fullmatch(zone[_ZONE]) else ''}{zone[_ZONE]} {_ARROW}"
    merged[_EXECUTOR_JAVA_OPTIONS] = f"{java} {start.conf.get(_EXECUTOR_JAVA_OPTIONS, '')}".strip()
    given = start.conf.get(_JAVA_OPTIONS, "")
    # What the JVM leaves in its temporary directory goes with the scratch directory, also after a kill.
    merged[_JAVA_OPTIONS] = f'{java}{_heap(merged, given)} {given} -Djava.io.tmpdir="{start.scratch}" -XX:-UsePerfData'
    return merged


def _unix_sockets(scratch: str) -> dict[str, str]:
    """Rows go between Java and Python through Unix domain sockets: a twelfth less processor time at 1 KiB a record.

    Spark asks for no secret there, so they are in the member's own directory, which is above the worker's: the path of
    that one is always too long. Not if that is in a file system without sockets, as some that machines share are.
    """
    place = os.path.dirname(scratch)
    if len(os.fsencode(place)) > _LONGEST_PLACE:
        return {}
    try:
        with socket.socket(socket.AF_UNIX) as tried, TemporaryDirectory(prefix=".", dir=place) as within:
            tried.bind(f"{within}/s")
    except OSError:
        return {}
    return {f"{_UNIX_SOCKETS}.enabled": "true", f"{_UNIX_SOCKETS}.dir": place}


def _is_local(start: StartWorker) -> bool:
    """Whether Spark uses no other file system than this machine's: others may need Spark's own for what they buffer."""
    named = (start.event_log or "", *start.conf.values())
    return not is_cluster(start.master) and all(each.startswith("file:") for each in named if "://" in each)


def _heap(merged: Mapping[str, str], given: str) -> str:
    """How a small heap is used; options that are given come after these, and count.

    Java's default collector takes a fifth more processor time to start, and pays with large heaps only. Where the tasks
    run in this Java it has all of the heap from the start, half of it for what is new: otherwise it collects four times
    as long, which is a quarter of all processor time at 1 KiB a record.
    """
    chosen = " ".join([given, *(os.environ.get(name, "") for name in _JAVA_VARIABLES)])
    memory = merged["spark.driver.memory"]
    if not _SMALL_HEAP.fullmatch(memory):
        return ""
    # Java does not start with two collectors.
    collector = "" if _COLLECTOR.search(chosen) else " -XX:+UseSerialGC"
    return collector if is_cluster(merged["spark.master"]) else f"{collector} -Xms{memory} -XX:NewRatio=1"
