"""Which kernels are used, and when numba is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer.records import kernel_loading
from kzconsumer.records.kernel_loading import kernels_in_use, load_kernels
from kzconsumer.records.kernel_set import KernelSet

CHECK = """
import sys
{before}
from kzconsumer.records.decode import decode
from kzconsumer.records.kernel_loading import kernels_in_use, load_kernels
from tests.support.record_sets import Record, record_batch
assert "numba" not in sys.modules or sys.modules["numba"] is None
{warm}
data = record_batch([Record(b"key", b"value")] * {records}, base_offset=0)
decoded = decode(memoryview(data), topic="t", partition=0, start=0)
assert len(decoded.records) == {records} and decoded.next_offset == {records}
print(kernels_in_use(), "numba.core" in sys.modules)
"""


def run(before: str = "", warm: str = "load_kernels()", records: int = 1000, **environment: str) -> str:
    code = CHECK.format(before=before, warm=warm, records=records)
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_numba_is_loaded_by_the_first_large_input_only() -> None:
    assert run(warm="", records=10) == "python: numba's kernels are not loaded yet False"
    assert run(warm="", records=30_000) == "numba True"


def test_without_numba_everything_works() -> None:
    answer = run(before="sys.modules['numba'] = None")
    assert answer.startswith("python: ModuleNotFoundError: ")
    assert answer.count("\n") == 0


def test_a_cache_directory_that_cannot_be_created_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    compiled = load_kernels()

    def compile_all(*, cache: bool) -> KernelSet:
        asked.append(cache)
        return compiled

    monkeypatch.setattr("kzconsumer.records.kernels.compile_all", compile_all)
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(kernel_loading, "_loaded", None)
    monkeypatch.setattr(kernel_loading, "_description", "")
    assert load_kernels() is compiled
    assert kernels_in_use().startswith("numba, not cached: ")
    assert asked == [False]


def test_a_cache_that_cannot_be_written_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = load_kernels()

    def compile_all(*, cache: bool) -> KernelSet:
        if cache:
            raise OSError("no space left on device")
        return compiled

    monkeypatch.setattr("kzconsumer.records.kernels.compile_all", compile_all)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_loading, "_loaded", None)
    monkeypatch.setattr(kernel_loading, "_description", "")
    assert load_kernels() is compiled
    assert kernels_in_use() == "numba, not cached: OSError: no space left on device"


def test_only_the_owner_may_write_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content is executed."""
    compiled = load_kernels()
    monkeypatch.setattr("kzconsumer.records.kernels.compile_all", lambda *, cache: compiled)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_loading, "_loaded", None)
    monkeypatch.setattr(kernel_loading, "_description", "")
    before = os.umask(0)
    try:
        assert load_kernels() is compiled
    finally:
        os.umask(before)
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.long
def test_the_cache_is_used_by_the_next_process(tmp_path: Path) -> None:
    assert run(NUMBA_CACHE_DIR=str(tmp_path)) == "numba True"
    (folder,) = tmp_path.iterdir()
    made = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert made
    assert run(NUMBA_CACHE_DIR=str(tmp_path)) == "numba True"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == made
