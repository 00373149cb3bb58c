"""The quarantine of bad records on a real file system: by range, once, and never contradictory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kzconsumer_spark.columns.bad_records import Quarantine, QuarantineDiffers
from tests.support.batch_ranges import batch_range
from tests.support.disk import watched_disk

PART = batch_range()


def bad(*offsets: int, value: bytes = b"x") -> pa.Table:
    return pa.table({"offset": pa.array(offsets, pa.int64()), "value": [value] * len(offsets)})


def test_the_first_writer_wins_and_a_different_result_is_reported(tmp_path: Path) -> None:
    ours, theirs = Quarantine(tmp_path), Quarantine(tmp_path)
    ours.require_same(PART, [])
    ours.put(PART, bad(5, 3))
    theirs.put(PART, bad(3, 5, value=b"written again"))
    found = pq.read_table(ours.file(PART)).to_pylist()
    assert found == [{"offset": 3, "value": b"x"}, {"offset": 5, "value": b"x"}]
    for differing in ((3,), (3, 5, 6)):
        with pytest.raises(QuarantineDiffers, match=rf"^t-0\[0\.\.9\): 2 records .* and {len(differing)} are bad now"):
            theirs.put(PART, bad(*differing))
    with pytest.raises(QuarantineDiffers):
        theirs.require_same(PART, [])
    assert pq.read_table(ours.file(PART)).to_pylist() == found
    ours.close()
    theirs.close()
    assert [each.name for each in tmp_path.iterdir() if each.name[0] != "_"] == [ours.file(PART).name]
    assert not list((tmp_path / "_attempts").iterdir())


def test_an_attempt_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk would otherwise have one part of a file more with each attempt."""
    quarantine = Quarantine(tmp_path)

    def full(table: pa.Table, file: Path, **options: object) -> None:
        file.write_bytes(b"PAR1")
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pq, "write_table", full)
        with pytest.raises(OSError, match="no space left"):
            quarantine.put(PART, bad(5, 3))
    assert not [each for each in tmp_path.rglob("*") if each.is_file() and each.suffix != ".lock"]
    quarantine.put(PART, bad(5, 3))
    quarantine.close()


def test_bad_records_are_on_disk_before_the_others_are_written(tmp_path: Path) -> None:
    with watched_disk(tmp_path) as disk:
        quarantine = Quarantine(tmp_path / "of" / "records")

        def on_name(file: Path, name: Path) -> None:
            reason = disk.missing(file)
            assert reason is None or reason.startswith("the name"), f"{name}: {reason}"

        disk.on_name = on_name
        quarantine.put(PART, bad(5, 3))
        disk.require(quarantine.file(PART))
        quarantine.close()
