"""Jars are fetched whole from Maven's public repository, once per user, even if several processes need them at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer_sandbox.errors import SandboxError
from kzconsumer_sandbox.servers.jars import find_java, resolve_jars
from kzconsumer_sandbox.servers.versions import Artifact, JarSet

SMALL = JarSet("small", (Artifact("org.slf4j", "slf4j-api", "1.7.36"),), 1)
RESOLVE = """
from tests.sandbox.servers.test_sandbox_jars import SMALL
from kzconsumer_sandbox.servers.jars import resolve_jars
from kzconsumer_sandbox.servers.jars import find_java
print(resolve_jars(SMALL, find_java()))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without any jars."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kzconsumer"


def test_two_processes_fetch_once(cache: Path) -> None:
    resolving = [subprocess.Popen([sys.executable, "-c", RESOLVE], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {process.communicate()[0] for process in resolving}
    assert folders == {f"{cache}/jars/small\n"}
    assert sorted(path.name for path in (cache / "jars").iterdir()) == [".lock", "small"]
    assert sorted(path.name for path in (cache / "jars" / "small").iterdir()) == [
        "contents.txt",
        "slf4j-api-1.7.36.jar",
    ]


def test_progress_is_reported_and_a_second_time_nothing_happens(cache: Path) -> None:
    output: list[tuple[int, int]] = []
    folder = resolve_jars(SMALL, find_java(), lambda *step: output.append(step))
    assert [step for step in dict.fromkeys(output) if step[0]] == [(1, 2), (2, 2)]
    assert resolve_jars(SMALL, Path("/no/java/needed")) == folder


def test_a_set_with_other_versions_is_replaced(cache: Path) -> None:
    old = cache / "jars" / "small"
    old.mkdir(parents=True)
    (old / "contents.txt").write_text("org.slf4j:slf4j-api:1.7.35\n")
    (old / "slf4j-api-1.7.35.jar").write_bytes(b"")
    folder = resolve_jars(SMALL, find_java())
    assert [path.name for path in folder.glob("*.jar")] == ["slf4j-api-1.7.36.jar"]


def test_a_missing_artifact_is_named(cache: Path) -> None:
    nothing = JarSet("nothing", (Artifact("org.slf4j", "slf4j-api", "0.0.0-never"),), 1)
    with pytest.raises(
        SandboxError, match=r"cannot fetch the jars of nothing(.|\n)*slf4j-api;0\.0\.0-never: not found"
    ):
        resolve_jars(nothing, find_java())
    assert [path.name for path in (cache / "jars").iterdir()] == [".lock"]
