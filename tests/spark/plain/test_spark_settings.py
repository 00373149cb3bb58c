"""The settings of the Spark session: the user's before ours, and those that are refused."""

from __future__ import annotations

import os
import sys
import zoneinfo
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from kzconsumer.errors import ConfigError
from kzconsumer_spark.daemon.requirements import make_scratch
from kzconsumer_spark.daemon.sink_options import FilesOptions, read_options
from kzconsumer_spark.daemon.worker_process import worker_environment
from kzconsumer_spark.worker_protocol.messages import To, ToFunction, ToJdbc
from kzconsumer_spark.worker_protocol.spark_settings import local_address, settings
from tests.spark.plain.test_spark_options import CLUSTER, FILES, FUNCTION, JDBC, KUBERNETES, PARQUET, UNCHECKED, start


def test_the_users_settings_come_before_our_defaults() -> None:
    made = settings(start(FILES, {"spark.driver.memory": "3g", "spark.driver.extraJavaOptions": "-Dx=y"}))
    assert made["spark.driver.memory"] == "3g"
    assert made["spark.driver.extraJavaOptions"] == (
        f'-Duser.timezone=UTC {UNCHECKED} -Dx=y -Djava.io.tmpdir="/s c/r" -XX:-UsePerfData'
    )
    assert made["spark.master"] == "local[1]"
    assert settings(start(FILES, {}))["spark.driver.memory"] == "1g"


@pytest.mark.parametrize(
    ("conf", "variable", "serial"),
    [
        ({}, "", True),
        ({"spark.driver.memory": "512m"}, "", True),
        ({"spark.driver.memory": "8g"}, "", False),
        ({"spark.driver.extraJavaOptions": "-XX:+UseZGC"}, "", False),
        ({}, "-Xss4m -XX:+UseG1GC", False),
        ({}, "-XX:+UseStringDeduplication", True),
    ],
)
def test_a_small_java_collects_with_one_thread_unless_another_collector_is_chosen(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], variable: str, serial: bool
) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", variable)
    options = settings(start(FILES, conf))["spark.driver.extraJavaOptions"].split()
    assert ("-XX:+UseSerialGC" in options) == serial


def test_the_whole_heap_is_used_from_the_start_unless_it_is_larger_or_other_options_follow() -> None:
    def options(conf: dict[str, str]) -> list[str]:
        return settings(start(FILES, conf))["spark.driver.extraJavaOptions"].split()

    assert "-Xms1g" in options({})
    assert "-Xms512m" in options({"spark.driver.memory": "512m"})
    assert not [each for each in options({"spark.driver.memory": "8g"}) if each.startswith("-Xms")]
    given = options({"spark.driver.extraJavaOptions": "-Xms64m"})
    assert [each for each in given if each.startswith("-Xms")] == ["-Xms1g", "-Xms64m"], "Java takes the last"


@pytest.mark.parametrize(
    ("name", "master", "used"),
    [
        ("m" * 44, "local[2]", True),
        ("m" * 45, "local[2]", False),  # Spark would refuse it
        ("ü" * 23, "local[2]", False),
        ("m", "spark://h:7077", False),  # the directory would have to be on each machine
        ("none", "local[2]", False),  # where no socket can be
    ],
)
def test_rows_go_through_sockets_in_the_members_directory_if_its_path_is_short(
    name: str, master: str, used: bool
) -> None:
    with TemporaryDirectory(dir="/tmp", prefix="kz") as above:
        assert len(above) == 15
        place = f"{above}/{name}"
        if name != "none":
            Path(place).mkdir(parents=True)
        made = settings(msgspec.structs.replace(start(FILES, {}, master), scratch=f"{place}/worker-1"))
    assert made.get("spark.python.unix.domain.socket.dir") == (place if used else None)
    assert made.get("spark.python.unix.domain.socket.enabled") == ("true" if used else None)


def test_the_members_usual_directory_is_short_enough_for_sockets() -> None:
    """Also for the users that containers and systemd invent."""
    scratch = make_scratch(read_options(PARQUET))
    try:
        usual = f"/tmp/{scratch.path.parent.name}-65534/{scratch.path.name}"
        assert len(usual.replace(f"-{os.getuid()}-", "-")) <= 60
    finally:
        scratch.remove()


@pytest.mark.parametrize(
    ("destination", "conf", "master", "plain"),
    [
        (FILES, {}, "local[2]", True),
        (FILES, {"spark.eventLog.dir": "file:///var/log"}, "local[2]", True),
        (FILES, {"spark.eventLog.dir": "s3a://b/log"}, "local[2]", False),
        (FILES, {}, "spark://h:7077", False),
        (ToFunction(function="m:f"), {}, "local[2]", False),
    ],
)
def test_local_files_have_no_checksums_where_nothing_else_could_need_them(
    destination: To, conf: dict[str, str], master: str, plain: bool
) -> None:
    made = settings(start(destination, conf, master))
    assert (made.get("spark.hadoop.fs.file.impl") == "org.apache.hadoop.fs.RawLocalFileSystem") == plain


@pytest.mark.parametrize(
    ("given", "enabled", "port"), [(False, "false", None), (True, "true", None), (8080, "true", "8080")]
)
def test_sparks_pages_are_served_on_request(given: bool | int, enabled: str, port: str | None) -> None:
    read = read_options(PARQUET | {"ui": given})
    made = settings(msgspec.structs.replace(start(FILES, {}), ui=read.ui))
    assert (made["spark.ui.enabled"], made.get("spark.ui.port")) == (enabled, port)
    assert made.get("spark.ui.killEnabled") == (None if given is False else "false")


@pytest.mark.parametrize(
    ("given", "uri"), [("/var/a b", "file:///var/a%20b"), ("file:/var/a", "file:/var/a"), ("s3a://b/x", "s3a://b/x")]
)
def test_the_event_log_is_a_directory_or_a_uri(given: str, uri: str) -> None:
    read = read_options(PARQUET | {"event_log": given})
    made = settings(msgspec.structs.replace(start(FILES, {}), event_log=read.event_log))
    names = ("enabled", "dir", "rolling.enabled")
    assert [made[f"spark.eventLog.{name}"] for name in names] == ["true", uri, "true"]
    assert "spark.eventLog.enabled" not in settings(start(FILES, {}))


def test_an_event_log_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"\[sink.options\] event_log: .*Not a directory"):
        make_scratch(read_options(PARQUET | {"event_log": str(tmp_path / "file" / "log")}))


@pytest.mark.parametrize("ui", [0, 65536, "yes"])
def test_a_port_of_sparks_pages_that_is_none(ui: object) -> None:
    with pytest.raises(ConfigError, match="ui"):
        read_options(PARQUET | {"ui": ui})


def test_the_application_has_the_name_of_the_group() -> None:
    assert settings(msgspec.structs.replace(start(FILES, {}), name="orders"))["spark.app.name"] == "orders"


@pytest.mark.parametrize("master", ["local[2]", "local[2,4]", "spark://h:7077"])
def test_spark_runs_no_task_of_postgresql_again(master: str) -> None:
    """Whatever the master says: the rows that a task has staged are not staged twice."""
    to = ToJdbc(url="jdbc:postgresql://h:5432/d", table="t", user="u")
    made = settings(start(to, {"spark.task.maxFailures": "4", "spark.speculation": "true"}, master))
    assert (made["spark.task.maxFailures"], made["spark.speculation"]) == ("1", "false")


@pytest.mark.parametrize(
    ("given", "java", "environment"),
    [
        (None, "UTC", "UTC"),
        ("Europe/Berlin", "Europe/Berlin", "Europe/Berlin"),
        ("+05:30", "GMT+05:30", "<+0530>-05:30"),
        ("-03:00", "GMT-03:00", "<-0300>+03:00"),
    ],
)
def test_the_time_zone_is_utc_or_the_configured_one(given: str | None, java: str, environment: str) -> None:
    """For Spark, Java and Python alike, in the worker and in executors."""
    conf = {"spark.sql.session.timeZone": given} if given else {}
    for master in ("local[1]", "spark://h:7077"):
        made = settings(start(FILES, {**conf, "spark.executor.extraJavaOptions": "-Dx=y"}, master))
        assert made["spark.sql.session.timeZone"] == (given or "UTC")
        assert made["spark.driver.extraJavaOptions"].split()[0] == f"-Duser.timezone={java}"
        assert made["spark.executor.extraJavaOptions"] == f"-Duser.timezone={java} {UNCHECKED} -Dx=y"
        assert made["spark.executorEnv.TZ"] == environment
    assert worker_environment(conf)["TZ"] == environment


@pytest.mark.parametrize(
    "zone",
    [
        "UTC+02:00",
        "UTC+2",
        "GMT+2",
        "+2:00",
        "+02",
        "PST",
        "Z",
        "utc",
        "",
        "+18:30",
        "+05:60",
        "+\u0660\u0665:\u0663\u0660",
    ],
)
def test_a_time_zone_that_java_and_python_read_differently_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options(PARQUET | {"conf": {"spark.sql.session.timeZone": zone}})
    (line,) = caught.value.faults
    assert line.startswith(f'[sink.options]: conf.spark.sql.session.timeZone: "{zone}" is not UTC, an offset such as')


@pytest.mark.parametrize("zone", ["UTC", "+02:00", "-18:00", "+00:00", "Europe/Berlin", "America/Los_Angeles"])
def test_every_other_time_zone_is_accepted(zone: str) -> None:
    assert read_options(PARQUET | {"conf": {"spark.sql.session.timeZone": zone}})


@pytest.fixture
def no_time_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that has neither the files of its system nor the package tzdata."""
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(to=())
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("no_time_zones")
def test_a_machine_without_time_zones_says_so() -> None:
    assert read_options(PARQUET | {"conf": {"spark.sql.session.timeZone": "+02:00"}})
    with pytest.raises(ConfigError) as caught:
        read_options(PARQUET | {"conf": {"spark.sql.session.timeZone": "Europe/Berlin"}})
    (line,) = caught.value.faults
    assert line.startswith('[sink.options]: conf.spark.sql.session.timeZone: "Europe/Berlin" cannot be checked: ')
    assert "install tzdata" in line


@pytest.mark.parametrize("master", ["spark://h:7077", "spark://h1:7077,h2.example:7078"])
def test_the_driver_address_of_a_cluster_is_reachable_for_executors(master: str) -> None:
    assert isinstance(read_options(PARQUET | CLUSTER | {"master": master}), FilesOptions)
    assert "spark.driver.host" not in settings(start(FILES, {}, master))
    assert settings(start(FILES, {}))["spark.driver.host"] == "127.0.0.1"
    assert local_address("spark://127.0.0.1:7077,127.0.0.2:7077") == "127.0.0.1"
    assert local_address("k8s://https://127.0.0.1:6443") == "127.0.0.1"


def test_executors_start_python_by_our_module_and_a_local_spark_by_its_script() -> None:
    key, module = "spark.python.daemon.module", "kzconsumer_spark.executors.python_daemon"
    assert find_spec(module) is not None
    assert settings(start(FILES, {}, "spark://h:7077"))[key] == module
    assert settings(start(FILES, {key: "mine"}, "spark://h:7077"))[key] == "mine"
    assert key not in settings(start(FILES, {}))


@pytest.mark.parametrize("options", [KUBERNETES, KUBERNETES | {"master": "k8s://h:443"}, {**CLUSTER, "master": "yarn"}])
def test_clusters_of_other_managers_are_accepted(options: dict[str, object]) -> None:
    assert read_options(FUNCTION | options).master == options["master"]
    with pytest.raises(ConfigError, match='destination "jdbc" does not go with master'):
        read_options(JDBC | options)


def test_only_the_files_destination_changes_how_files_are_written() -> None:
    key = "spark.sql.files.maxRecordsPerFile"
    assert key in settings(start(FILES, {}))
    assert settings(start(ToFunction(function="a:b"), {key: "5"}))[key] == "5"
