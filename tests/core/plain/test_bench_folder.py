"""The directory of a measurement, with gigabytes of records, is removed also if SIGTERM ends the measurement."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.bench.folder import bench_folder


def test_sigterm_removes_the_directory() -> None:
    folders: list[Path] = []

    def measure() -> None:
        with bench_folder() as folder:
            folders.append(folder)
            (folder / "00000000000000000000.log").write_bytes(b"records")
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left:
        measure()
    assert left.value.code == 128 + signal.SIGTERM
    assert not folders[0].exists()
    assert signal.getsignal(signal.SIGTERM) is before
