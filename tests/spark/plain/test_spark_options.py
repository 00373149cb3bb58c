"""The options table of the Spark sink: each fault is one clear line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from kzconsumer.errors import ConfigError
from kzconsumer.sinks.interface import SinkContext
from kzconsumer_files.range_names import scope
from kzconsumer_spark.columns.avro_and_protobuf import Unsupported
from kzconsumer_spark.columns.ddl_types import require_types
from kzconsumer_spark.columns.schema_files import check_files
from kzconsumer_spark.daemon.sink import SparkSink
from kzconsumer_spark.daemon.sink_options import FilesOptions, PathOptions, local_path, read_options
from kzconsumer_spark.daemon.worker_process import WorkerDied, WorkerProcess
from kzconsumer_spark.worker.spark_errors import fault_of_settings, reason_of
from kzconsumer_spark.worker.spark_session import LOG_NAME
from kzconsumer_spark.worker_protocol.messages import StartWorker, To, ToDelta, ToFiles, ToFunction, ToJdbc
from kzconsumer_spark.worker_protocol.spark_settings import settings
from tests.support.batch_ranges import SETTINGS

PARQUET = {"destination": "parquet", "path": "out/"}
DELTA: dict[str, object] = {"destination": "delta", "path": "/d"}
ICEBERG: dict[str, object] = {"destination": "iceberg", "table": "lake.orders"}
JDBC: dict[str, object] = {"destination": "jdbc", "url": "jdbc:postgresql://h:5432/d", "table": "s.t", "user": "u"}
PAGE = Path(__file__).parents[3] / "docs" / "spark-columns.md"
CLUSTER: dict[str, object] = {"master": "spark://h:7077", "conf": {"spark.cores.max": "4"}}
KUBERNETES: dict[str, Any] = {
    "master": "k8s://https://h:6443",
    "conf": {"spark.kubernetes.container.image": "registry/spark:4.3"},
}
UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
FUNCTION = {"destination": "function", "function": "a:b"}


def start(destination: To, conf: dict[str, str], master: str = "local[1]") -> StartWorker:
    return StartWorker(
        scratch="/s c/r",
        master=master,
        conf=conf,
        destination=destination,
        next_batch=1,
        safe_until=0.0,
    )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "destination: missing"),
        ({"destination": "parqet", "path": "x"}, 'destination: "parqet" is not one of'),
        ({"destination": 5}, 'destination: "5" is not one of files, parquet, orc, json, csv, delta, iceberg, jdbc'),
        ({"destination": "parquet"}, "path: missing"),
        ({"destination": "parquet", "path": ""}, "path is empty"),
        ({"destination": "files", "path": "x"}, 'format is missing: destination "files" needs it'),
        ({"destination": "files", "path": "x", "format": "jsn"}, 'format: "jsn" is not one of'),
        (PARQUET | {"format": "orc"}, 'format: destination "parquet" says it already'),
        (PARQUET | {"partition_by": ["day", "Day"]}, "partition_by names a column twice"),
        (PARQUET | {"partition_by": "day"}, "partition_by: "),
        (PARQUET | {"write_options": {"maxRecordsPerFile": "5"}}, "write_options.maxRecordsPerFile cannot be set"),
        ({"destination": "function"}, "function: missing"),
        ({"destination": "function", "function": ""}, "function is empty"),
        (PARQUET | {"function": "a:b"}, 'function does not go with destination "parquet"'),
        (DELTA | {"format": "parquet"}, 'format does not go with destination "delta"'),
        (DELTA | {"path": ""}, "path is empty"),
        (
            DELTA | {"conf": {"spark.sql.files.maxRecordsPerFile": "5"}},
            "conf.spark.sql.files.maxRecordsPerFile cannot be",
        ),
        (ICEBERG | {"table": "orders"}, 'table "orders" is not "namespace.name"'),
        (
            ICEBERG | {"catalog_options": {"s3.session-token": "secret"}},
            "catalog_options.s3.session-token is not for a file that others read: "
            "use PYICEBERG_CATALOG__DEFAULT__S3__SESSION_TOKEN, or ~/.pyiceberg.yaml",
        ),
        (ICEBERG | {"catalog_options": {"uri": "postgresql://u:secret@h/d"}}, "catalog_options.uri is not for a file"),
        (ICEBERG | {"path": "x"}, 'path does not go with destination "iceberg"'),
        (JDBC | {"path": "x"}, 'path does not go with destination "jdbc"'),
        (JDBC | {"url": "jdbc:mysql://h/d"}, 'url is not "jdbc:postgresql://host:port/database"'),
        (JDBC | {"url": "jdbc:postgresql://h/"}, 'url is not "jdbc:postgresql://host:port/database"'),
        (JDBC | {"url": "jdbc:postgresql://u:secret@h/d"}, "url holds a user: use user, and password_file"),
        (JDBC | {"url": "jdbc:postgresql://h/d?password=secret"}, "url: the parameter password is not supported"),
        (JDBC | {"table": "a.b.c"}, 'table is not "name" or "schema.name"'),
        (JDBC | {"unique_key": ["id", "id"]}, "unique_key names a column twice"),
        (JDBC | {"write_options": {"Password": "secret"}}, "write_options.Password cannot be set here"),
        (JDBC | {"conf": {"spark.speculation": "true"}}, "conf.spark.speculation cannot be set here"),
        ({"destination": "function", "function": "a:b", "path": "x"}, "path does not go with"),
        (PARQUET | {"pathh": "x"}, "pathh: unknown key; did you mean path?"),
        (PARQUET | {"path": "hdfs://n/x"}, "is not a directory, nor a URI with s3, s3a, gs, abfss"),
        (
            PARQUET | CLUSTER | {"path": "s3a://bucket/x", "destination": "json"},
            'path s3a://bucket/x: with master "spark://h:7077" only Parquet goes into an object store',
        ),
        (
            PARQUET | CLUSTER | {"path": "s3a://bucket/x", "write_options": {"parquet.bloom.filter.enabled": "true"}},
            "write_options.parquet.bloom.filter.enabled: into an object store a cluster writes without Spark's writer",
        ),
        (
            PARQUET | CLUSTER | {"path": "s3a://bucket/x", "write_options": {"compression": "lzo"}},
            'compression "lzo" is not one of none, uncompressed, snappy, gzip, zstd, brotli, lz4_raw',
        ),
        (PARQUET | {"store_options": {"aws_region": "x"}}, "store_options go with a path such as s3://bucket/orders"),
        (
            PARQUET | {"path": "s3://b/x", "store_options": {"aws_session_token": "my-own"}},
            "store_options.aws_session_token is not for a file that others read: credentials come from the environment",
        ),
        (
            PARQUET | {"path": "s3://b/x", "store_options": {"aws_conditional_put": "disabled"}},
            "store_options.aws_conditional_put is not supported",
        ),
        (PARQUET | {"path": "file://host/x"}, "is not on a local file system"),
        (PARQUET | {"master": "yarn-cluster"}, 'master: "yarn-cluster" is not local, local[n], local[*], spark://host'),
        (PARQUET | {"master": "sc://h:15002"}, 'master: "sc://h:15002" is Spark Connect, where foreachBatch runs in a'),
        (PARQUET | {"master": "k8s://h"}, 'master: "k8s://h" is not local'),
        (PARQUET | KUBERNETES | {"conf": {}}, "conf is without spark.kubernetes.container.image"),
        (
            PARQUET | KUBERNETES | {"conf": KUBERNETES["conf"] | {"spark.ssl.keyPassword": "secret"}},
            "conf.spark.ssl.keyPassword cannot be set with Kubernetes",
        ),
        (PARQUET | {"conf": {"spark.submit.deployMode": "cluster"}}, "deployMode: only client is supported"),
        (PARQUET | {"master": "spark://h"}, 'master: "spark://h" is not local'),
        (PARQUET | {"spool": "/mnt"}, "there is no spool, Spark's tasks fetch the records from the brokers: remove it"),
        (PARQUET | {"read": "spool"}, "Spark's tasks always fetch the records themselves: remove it"),
        (PARQUET | CLUSTER | {"conf": {}}, "conf is without spark.cores.max"),
        (JDBC | CLUSTER, 'destination "jdbc" does not go with master "spark://h:7077", only with a local one'),
        (PARQUET | {"conf": {"spark.driver.memory": 1}}, "conf.spark.driver.memory: 1 is not text"),
        (PARQUET | {"conf": {"driver.memory": "1g"}}, "conf.driver.memory: Spark's settings begin with spark."),
        (PARQUET | {"conf": {"spark.master": "local"}}, "conf.spark.master cannot be set here: use master"),
        (PARQUET | {"conf": {"spark.sql.files.maxRecordsPerFile": "5"}}, "cannot be set here: the sink sets it itself"),
        (PARQUET | {"attempts": 0}, "attempts: 0 is less than 1"),
        (PARQUET | {"retry_backoff": "0s"}, "retry_backoff: "),
        (PARQUET | {"scratch": "/tmp/[x]"}, "scratch: "),
        (PARQUET | {"value": {"format": "jsn"}}, '[sink.options.value] format: "jsn" is not one of'),
        (PARQUET | {"partition_by": ["day", "_p"]}, 'directories of the column "_p" begin with "_"'),
        (PARQUET | {"partition_by": [".p"]}, 'directories of the column ".p" begin with "."'),
        (
            PARQUET | {"destination": "orc", "conf": {"spark.sql.session.timeZone": "Europe/Berlin"}},
            '"Europe/Berlin" does not go with ORC',
        ),
        (PARQUET | {"value": {"format": "json"}}, 'schema is missing: format "json" needs it'),
        (PARQUET | {"key": {"format": "string", "schema": "a INT"}}, 'schema does not go with format "string"'),
        (PARQUET | {"value": {"format": "json", "schema": "registry:s"}}, "that of JSON is Spark DDL"),
        (PARQUET | {"value": {"format": "avro", "schema": "a INT"}}, 'that of Avro is "file:name.avsc" or "registry'),
        (PARQUET | {"value": {"format": "protobuf", "schema": "file:a.proto"}}, 'format "protobuf" needs it'),
        (PARQUET | {"value": {"format": "string", "message": "M"}}, 'it does not go with format "string"'),
        (PARQUET | {"value": {"format": "raw", "on_error": "column"}}, "any bytes are good"),
        (PARQUET | {"value": {"format": "confluent-avro"}}, "registry is missing: value needs it"),
        (PARQUET | {"registry": {"url": "zk:8081"}}, "is not the URL of a schema registry"),
        (PARQUET | {"registry": {"url": "http://u:p@h"}}, "is not the URL of a schema registry"),
        (PARQUET | {"registry": {"url": "http://h", "user": "u"}}, "user and password_file go together"),
        (FUNCTION | {"value": {"format": "string", "on_error": "quarantine"}}, "quarantine is missing, the directory"),
        (PARQUET | {"select": " "}, "select is empty"),
    ],
)
def test_a_fault_is_one_line(options: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options(options)
    (line,) = caught.value.faults
    assert line.startswith("[sink.options")
    assert fault in line
    assert "secret" not in line


def test_faults_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        read_options({"destination": "parquet", "path": "hdfs:///x", "master": "mesos", "foo": 1, "scratch": "/tmp/*"})
    assert [line.split(": ")[0] for line in caught.value.faults] == [
        f"[sink.options] {key}" for key in ("path", "master", "foo", "scratch")
    ]


def test_the_documented_table_is_read() -> None:
    read = read_options(PARQUET | {"master": "local[2]", "conf": {"spark.driver.memory": "1g"}})
    assert isinstance(read, FilesOptions)
    assert (read.path, read.master, read.conf, read.attempts) == ("out/", "local[2]", {"spark.driver.memory": "1g"}, 3)


def test_each_destination_configures_the_worker() -> None:
    files = ToFiles(path="/d", format="orc", partition_by=("day",), write_options={"compression": "zstd"})
    given: dict[str, object] = {"path": "/d", "partition_by": ["day"], "write_options": {"compression": "zstd"}}
    assert read_options({"destination": "files", "format": "orc"} | given).to == files
    assert read_options({"destination": "orc"} | given).to == files, "the short form"
    delta = ToDelta(path="/d", partition_by=("day",), write_options={"compression": "zstd"})
    assert read_options({"destination": "delta"} | given).to == delta
    assert settings(start(delta, {})) == settings(start(files, {})), "its files are written as others"
    stored = read_options(PARQUET | {"path": "s3a://b/x/", "store_options": {"aws_region": "r"}})
    assert stored.to == ToFiles(path="s3a://b/x/", store_options={"aws_region": "r"})
    assert stored.columns.quarantine is None, "it must be a directory"
    made = read_options(JDBC | {"password_env": "SECRET", "unique_key": ["topic", "offset"]}).to
    assert made == ToJdbc(
        url="jdbc:postgresql://h:5432/d", table="s.t", user="u", password_env="SECRET", unique_key=("topic", "offset")
    )
    assert read_options({"destination": "function", "function": "a:b"}).to == ToFunction(function="a:b")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("commented", [False, True])
def test_the_examples_on_the_columns_page_are_read(number: int, commented: bool) -> None:
    block = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)[number]
    if commented:
        block = re.sub(r"^#(\w+ = )", r"\1", block, flags=re.MULTILINE)
    assert not read_options(tomllib.loads(block)["sink"]["options"]).columns.change_nothing


@pytest.mark.parametrize("master", ["local", "local[1]", "local[*]", "local[2, 3]"])
def test_every_local_master_is_accepted(master: str) -> None:
    assert read_options(PARQUET | {"master": master}).master == master


def test_paths_are_made_absolute_and_file_uris_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("out/") == tmp_path / "out"
    assert local_path("file:/data/a%20b") == local_path("file:///data/a%20b") == Path("/data/a b")


FILES = ToFiles(path="/out")


def test_settings_that_shape_rows_distinguish_destinations() -> None:
    context = SinkContext(group="g", member="g", cluster="", safe_until=lambda: 0.0, settings=SETTINGS)

    def output(**options: object) -> str:
        return SparkSink({"destination": "parquet", "path": "/d"} | options, context).fingerprint

    assert output() == output(scratch="/elsewhere", attempts=1)
    text = {"format": "string", "on_error": "column"}
    zone = {"spark.sql.session.timeZone": "Asia/Tokyo"}
    assert (
        len({output(), output(select="value"), output(where="offset > 1"), output(value=text), output(conf=zone)}) == 5
    )
    assert output() == output(conf={"spark.sql.session.timeZone": "UTC", "spark.driver.memory": "2g"})


LOGGED = """\
WARNING: Using incubator modules: jdk.incubator.vector
26/11/22 10:00:00 WARN Utils: codec not loaded
java.lang.ClassNotFoundException: org.example.Codec
\tat java.base/java.lang.Class.forName0(Native Method)
Caused by: java.lang.NumberFormatException: For input string: "x"
\t... 3 more
26/11/22 10:00:00 INFO SparkContext: tried org.example.Codec: ClassNotFoundException
"""
OUT_OF_MEMORY = """\
# There is insufficient memory for the Java Runtime Environment to continue.
# Native memory allocation (mmap) failed to map 715849728 bytes. Error detail: committing reserved memory.
"""
HEAP = """\
Invalid maximum heap size: -Xmxlots
Error: Could not create the Java Virtual Machine.
"""
BOTH_HEAPS = """\
Exception in thread "main" java.lang.IllegalArgumentException: Not allowed to specify max heap(Xmx) memory settings
\tat org.apache.spark.launcher.SparkSubmitCommandBuilder.buildSparkSubmitCommand(SparkSubmitCommandBuilder.java:275)
\tat org.apache.spark.launcher.Main.main(Main.java:89)
"""


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        (LOGGED + OUT_OF_MEMORY, None),
        (LOGGED + HEAP, "Invalid maximum heap size: -Xmxlots"),
        (LOGGED + BOTH_HEAPS, BOTH_HEAPS.splitlines()[0]),
        (LOGGED + "26/11/22 10:00:01 ERROR Utils: gone\njava.lang.ClassNotFoundException: a.B", "a.B"),
    ],
    ids=["out of memory", "heap size", "heap size twice", "error"],
)
def test_warnings_of_java_are_not_faults_of_the_settings(tmp_path: Path, log: str, fault: str | None) -> None:
    begun = msgspec.structs.replace(start(FILES, {}), scratch=str(tmp_path))
    (tmp_path / LOG_NAME).write_text(log)
    output = fault_of_settings(RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited"), begun)
    if fault is None:
        assert output is None
        assert "insufficient memory" in reason_of(RuntimeError("[JAVA_GATEWAY_EXITED]"), begun)
    else:
        assert output is not None
        assert output.startswith("[sink.options] conf: ")
        assert output.endswith(fault)


def test_a_java_that_is_too_new_is_a_fault_of_the_settings() -> None:
    """What Spark 4.0 says on Java 25."""
    error = RuntimeError("java.lang.UnsupportedOperationException: getSubject is not supported")
    fault = fault_of_settings(error, start(FILES, {}))
    assert fault is not None
    assert fault.startswith("JAVA_HOME: this Java is newer than Spark 4")


def test_what_the_worker_refuses_itself_is_a_fault_of_the_settings() -> None:
    """test_spark_columns.py has such errors; test_spark_sink.py has what the member reports of a fault."""
    fault = "[sink.options] where: no such column"
    assert fault_of_settings(ConfigError([fault]), start(FILES, {})) == fault


async def test_a_worker_that_cannot_be_started_counts_as_dead() -> None:
    """Not enough memory or processes: an overlong argument is an error of the same call."""
    async with anyio.create_task_group() as tasks:
        with pytest.raises(WorkerDied, match="cannot be started: Argument list too long"):
            await WorkerProcess.open(start(FILES, {}), {"TOO_LONG": "x" * (1 << 22)}, tasks)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, 60 + 3 * 130 + 1 + 2),
        ({"attempts": 1}, 60 + 130),
        ({"attempts": 5, "start_timeout": "400s", "retry_backoff": "10s"}, 60 + 5 * 410 + 10 + 20 + 40 + 80),
        ({"attempts": 5000}, 1e9),
    ],
)
def test_the_start_deadline_is_known(given: dict[str, object], limit: float) -> None:
    context = SinkContext(group="g", member="g", cluster="", safe_until=lambda: 0.0, settings=SETTINGS)
    assert SparkSink(PARQUET | given, context).start_limit == limit


def test_settings_that_said_what_is_always_so_are_accepted() -> None:
    assert read_options(PARQUET | {"read": "executors"}) == msgspec.structs.replace(
        read_options(PARQUET), read="executors"
    )


@pytest.mark.parametrize("options", [DELTA, ICEBERG])
def test_tables_know_what_the_group_was_before_the_cluster_had_an_id(options: dict[str, object]) -> None:
    def former(cluster: str) -> object:
        context = SinkContext(group="g", member="m", cluster=cluster, safe_until=lambda: 0.0, settings=SETTINGS)
        return msgspec.to_builtins(SparkSink(options, context).target.to)["former_scope"]

    assert former("K1u165aN") == scope("127.0.0.1:1", "g", "spark")
    assert former("127.0.0.1:1") == "", "it has none"


def test_the_sink_needs_the_settings_of_a_member() -> None:
    context = SinkContext(group="g", member="g", cluster="", safe_until=lambda: 0.0)
    with pytest.raises(ConfigError, match="the sink needs the settings of a member, whose records Spark fetches"):
        SparkSink(PARQUET, context)
    assert SparkSink(PARQUET, msgspec.structs.replace(context, settings=SETTINGS)).wants == "ranges"


@pytest.mark.parametrize("of_file", [False, True])
def test_a_type_that_json_is_not_read_as_is_found_without_spark(tmp_path: Path, of_file: bool) -> None:
    ddl = "id BIGINT, `char` STRING, name varchar (5)"
    (tmp_path / "orders.ddl").write_text(ddl)
    schema = f"file:{tmp_path / 'orders.ddl'}" if of_file else ddl
    fault = r"^value.schema: column name is VARCHAR\(5\), which JSON is not read as; use STRING$"
    with pytest.raises(ValueError, match=fault):
        check_files(read_options(PARQUET | {"value": {"format": "json", "schema": schema}}).columns)


@pytest.mark.parametrize(
    ("ddl", "fault"),
    [
        ("a INT, b STRUCT<c: ARRAY<MAP<STRING, TIME(3)>>>", "column b.c is TIME(3), which JSON is not read as"),
        ("a INT, b STRUCT<c: INT, C: INT>", "columns b.c and b.C are one to Spark, which ignores case"),
        ("id INT, `ID` INT", "columns id and ID are one to Spark, which ignores case"),
        ("a INT, a STRING", "columns a and a are one to Spark, which ignores case"),
        ("a INTERVAL DAY TO SECOND NOT NULL", "column a is INTERVAL DAY TO SECOND, which JSON is not read as"),
        ("a STRIN", "column a is STRIN, which JSON is not read as"),
        ("a STRING COMMENT 'was VARCHAR(5), a INT' -- CHAR(3)", None),
        ("a STRUCT<x: INT>, b STRUCT<X: STRING COLLATE UTF8_LCASE, y STRUCT<>>", None),
        ("a VARCHAR(5) ?", None),  # Spark's own parser says what is wrong
        ("a", None),
        ("", None),
    ],
)
def test_columns_of_a_schema_are_checked_without_spark(ddl: str, fault: str | None) -> None:
    if fault is None:
        require_types(ddl)
        return
    with pytest.raises(Unsupported) as caught:
        require_types(ddl)
    assert str(caught.value).removesuffix("; use STRING") == fault


@pytest.mark.parametrize("options", [PARQUET, DELTA])
def test_tasks_of_a_cluster_put_files_into_a_store(options: dict[str, object]) -> None:
    """And not those of a local Spark, nor into a directory."""
    stored = options | {"path": "s3a://bucket/x", "write_options": {"compression": "zstd"}}
    read = [read_options(each) for each in (stored | CLUSTER, stored, options | CLUSTER)]
    assert [each.by_tasks for each in read if isinstance(each, PathOptions)] == [True, False, False]
