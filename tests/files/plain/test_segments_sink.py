"""The archive on disk: what is written, recovered and refused, and who may write."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import pytest

from kzconsumer import clock
from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.process_lock import ProcessLock
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Batch, RangeData, SinkContext
from kzconsumer_files.segments import SegmentsSink
from tests.support.copied import copied
from tests.support.raw_ranges import TOPIC, batch, batches, content, log_bytes, raw_range, segments
from tests.support.record_sets import Record, message_set


class Lease:
    """Held until a test ends it."""

    until = math.inf


def context(group: str = "g", lease: Lease | None = None) -> SinkContext:
    held = lease or Lease()
    return SinkContext(group=group, member="m", cluster="c", safe_until=lambda: held.until)


@asynccontextmanager
async def opened(path: Path, *, lease: Lease | None = None, **options: object) -> AsyncIterator[SegmentsSink]:
    async with SegmentsSink({"path": str(path), **options}, context(lease=lease)) as sink:
        yield sink


async def write(path: Path, *parts: RangeData, **options: object) -> None:
    """By a new sink, as after a restart."""
    async with opened(path, lease=None, **options) as sink:
        for part in parts:
            await sink.write(Batch((part,)))


def directory(path: Path, partition: int = 0) -> Path:
    return path / f"{TOPIC}-{partition}"


async def test_ranges_are_appended_in_kafkas_names(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    async with opened(path) as sink:
        assert capabilities(sink).wants == "raw"
        await sink.write(Batch((batches(100, 120), batches(0, 10, partition=7))))
        await sink.write(Batch((batches(120, 130),)))
    assert [each.name for each in segments(directory(path))] == ["00000000000000000100.log"]
    assert content(directory(path)) == log_bytes(100, 130)
    assert content(directory(path, 7)) == log_bytes(0, 10)


async def test_segments_are_rolled_by_size(tmp_path: Path) -> None:
    await write(tmp_path, batches(0, 100), segment_bytes=3 * len(batch(10)))
    assert [int(each.stem) for each in segments(directory(tmp_path))] == [0, 30, 60, 90]
    assert content(directory(tmp_path)) == log_bytes(0, 100)


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 5000, Random(1).randbytes(5000), batch(20)[:-1], b"\0"],
    ids=["zeros", "noise", "a part of a batch", "a zero"],
)
async def test_a_restart_truncates_incomplete_entries_and_continues(tmp_path: Path, tail: bytes) -> None:
    await write(tmp_path, batches(0, 20))
    (segment,) = segments(directory(tmp_path))
    segment.write_bytes(segment.read_bytes() + tail)
    await write(tmp_path, batches(10, 40))
    assert content(directory(tmp_path)) == log_bytes(0, 40)


@pytest.mark.parametrize("magic", [0, 1])
async def test_a_restart_recovers_message_sets(tmp_path: Path, magic: int) -> None:
    whole = message_set([Record(None, b"v%02d" % n) for n in range(30)], magic=magic, base_offset=0)
    await write(tmp_path, raw_range(0, 20, whole[: len(whole) // 3 * 2]), raw_range(0, 30, whole))
    assert content(directory(tmp_path)) == whole
    (segment,) = segments(directory(tmp_path))
    os.truncate(segment, len(whole) - 3)
    await write(tmp_path, raw_range(0, 30, whole))
    assert content(directory(tmp_path)) == whole


async def test_a_stored_offset_beyond_the_end_is_refused_and_nothing_is_truncated(tmp_path: Path) -> None:
    await write(tmp_path, batches(0, 30))
    (segment,) = segments(directory(tmp_path))
    damaged = bytearray(segment.read_bytes())
    damaged[len(batch(0)) + 70] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises(SinkError, match=r"orders-0: the stored offset is 30, but .*orders-0 ends at 10"):
        await write(tmp_path, batches(30, 40))
    assert segment.read_bytes() == damaged, "records after the damage may still be usable"
    await write(tmp_path, batches(10, 40))
    assert content(directory(tmp_path)) == log_bytes(0, 40)


async def test_a_segment_that_cannot_be_created_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous descriptor is not closed twice: its number may belong to another thread by then."""
    real = os.open

    def full(path: Path, flags: int, *arguments: int) -> int:
        if flags & os.O_EXCL and Path(path).name == f"{20:020d}.log":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, *arguments)

    async with opened(tmp_path, segment_bytes=2 * len(batch(10))) as sink:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", full)
            with pytest.raises(SinkError, match="No space left on device"):
                await sink.write(Batch((batches(0, 30),)))
        await sink.write(Batch((batches(0, 30),)))
    assert content(directory(tmp_path)) == log_bytes(0, 30)


async def test_a_jump_without_a_range_is_refused_while_running_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as sink:
        await sink.write(Batch((batches(0, 10),)))
        with pytest.raises(SinkError, match="stored offset is 20"):
            await sink.write(Batch((batches(20, 30),)))


@pytest.mark.parametrize("segment_bytes", [1 << 30, len(batch(10))], ids=["one segment", "segments"])
async def test_an_archive_that_was_restored_takes_nothing_more(tmp_path: Path, segment_bytes: int) -> None:
    """While a member writes to it: what is there would be followed by a hole."""
    path = tmp_path / "archive"
    async with opened(path, segment_bytes=segment_bytes) as sink:
        await sink.write(Batch((batches(0, 20),)))
        restore = copied(path)
        await sink.write(Batch((batches(20, 40),)))
        await sink.write(Batch((batches(40, 50),)))
        restore()
        for _ in range(2):
            with pytest.raises(SinkError, match=r"the stored offset is 50, but .* ends at 20: put back what"):
                await sink.write(Batch((batches(50, 60),)))
        await sink.write(Batch((batches(20, 60),)))
    assert content(directory(path)) == log_bytes(0, 60)


async def test_members_on_different_disks_continue_with_a_new_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write(tmp_path, batches(0, 30))
    await write(tmp_path, batches(50, 60), spread=True)
    assert caplog.text.count("gap in the archive") == 1
    assert [int(each.stem) for each in segments(directory(tmp_path))] == [0, 50]
    assert content(directory(tmp_path)) == log_bytes(0, 30) + log_bytes(50, 60)


async def test_a_hole_of_the_log_outlives_a_restart(tmp_path: Path) -> None:
    """Records that retention has deleted, or a skipped corrupt batch: not a gap of the archive."""
    await write(tmp_path, raw_range(0, 50, batch(0)))
    await write(tmp_path, batches(50, 60))
    assert content(directory(tmp_path)) == batch(0) + batch(50)


async def test_a_recreated_topic_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    await write(tmp_path, batches(0, 10))
    with pytest.raises(SinkError, match="holds an earlier topic of that name"):
        await write(tmp_path, raw_range(0, 10, batch(0), incarnation=99))
    assert content(directory(tmp_path)) == log_bytes(0, 10)


async def test_a_directory_of_another_group_or_without_owner_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "ours"):
        pass
    with pytest.raises(ConfigError, match="is the archive of group g of cluster c; this is group other of cluster c"):
        async with SegmentsSink({"path": str(tmp_path / "ours")}, context(group="other")):
            pass
    (tmp_path / "brokers" / "orders-0").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"is not empty \(orders-0\)"):
        async with opened(tmp_path / "brokers"):
            pass
    async with opened(tmp_path / "ours") as sink:
        directory(tmp_path / "ours").mkdir()
        (directory(tmp_path / "ours") / "00000000000000000000.log").touch()
        with pytest.raises(SinkError, match=r"holds segments but no archive\.json"):
            await sink.write(Batch((batches(0, 10),)))


async def test_a_check_finds_what_a_start_would_and_changes_nothing(tmp_path: Path) -> None:
    def look(path: Path, group: str = "g") -> None:
        # Without a server the cluster id is unknown.
        without = SinkContext(group=group, member="", cluster="", safe_until=lambda: 0.0)
        SegmentsSink({"path": str(path)}, without).check()

    look(tmp_path / "new" / "archive")
    look(tmp_path)
    assert list(tmp_path.iterdir()) == []
    async with opened(tmp_path / "ours"):
        pass
    before = sorted(tmp_path.rglob("*"))
    look(tmp_path / "ours")
    with pytest.raises(ConfigError, match="is the archive of group g of cluster c; this is group other"):
        look(tmp_path / "ours", "other")
    (tmp_path / "brokers" / "orders-0").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"is not empty \(orders-0\)"):
        look(tmp_path / "brokers")
    (tmp_path / "file").touch()
    for inside in (tmp_path / "file", tmp_path / "file" / "archive"):
        with pytest.raises(ConfigError, match=r"path: .*file.* cannot be used: .*file is not a directory"):
            look(inside)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "archive-owner.json").write_text("{")
    with pytest.raises(ConfigError, match=r"archive-owner\.json cannot be read"):
        look(tmp_path / "torn")
    assert set(before) <= set(tmp_path.rglob("*"))


async def test_a_write_that_fails_names_the_partition(tmp_path: Path) -> None:
    async with opened(tmp_path) as sink:
        await sink.write(Batch((batches(0, 10),)))
        segments(directory(tmp_path))[0].unlink()
        with pytest.raises(SinkError, match=r"segments: orders-0: .* ended at 10, and has no segments now"):
            await sink.write(Batch((batches(10, 20),)))


async def test_a_locked_partition_is_waited_for(tmp_path: Path) -> None:
    """A zombie in the middle of a write holds the lock: its successor opens the segment only afterwards."""
    async with opened(tmp_path) as sink:
        await sink.write(Batch((batches(0, 10),)))
        holder = ProcessLock.take(directory(tmp_path) / ".lock")
        assert holder is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.write, Batch((batches(10, 20),)))
            await anyio.sleep(0.1)
            assert content(directory(tmp_path)) == log_bytes(0, 10)
            holder.release()
        assert content(directory(tmp_path)) == log_bytes(0, 20)


async def test_waiting_for_a_lock_can_be_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path) as sink:
        await sink.write(Batch((batches(0, 10),)))
        holder = ProcessLock.take(directory(tmp_path) / ".lock")
        assert holder is not None
        with anyio.fail_after(10), anyio.move_on_after(0.1):
            await sink.write(Batch((batches(10, 20),)))
        holder.release()
        assert content(directory(tmp_path)) == log_bytes(0, 10)


async def test_without_the_lease_nothing_is_written_until_it_is_back(tmp_path: Path) -> None:
    lease = Lease()
    async with opened(tmp_path, lease=lease) as sink, opened(tmp_path) as successor:
        await sink.write(Batch((batches(0, 10),)))
        lease.until = clock.now()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.write, Batch((batches(10, 20),)))
            await anyio.sleep(0.1)
            assert content(directory(tmp_path)) == log_bytes(0, 10)
            with anyio.fail_after(10):
                await successor.write(Batch((batches(10, 20),)))  # the lock is not held meanwhile
            assert content(directory(tmp_path)) == log_bytes(0, 20)
            lease.until = math.inf
        assert content(directory(tmp_path)) == log_bytes(0, 20), "it found its successor's work"


async def test_two_alternating_sinks_leave_neither_gap_nor_overlap(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        for first, until in ((0, 20), (20, 30), (10, 40)):
            await one.write(Batch((batches(first, until),)))
            await two.write(Batch((batches(first, until + 10),)))
        async with anyio.create_task_group() as tasks:
            for sink in (one, two):
                tasks.start_soon(sink.write, Batch((batches(50, 5000),)))
    assert content(directory(tmp_path)) == log_bytes(0, 5000)


WRITER = """
import sys, anyio
from pathlib import Path
from tests.files.plain.test_segments_sink import opened
from tests.support.raw_ranges import batches
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Batch

async def main():
    async with opened(Path(sys.argv[1])) as sink:
        at = int(sys.argv[2])
        while True:
            await sink.write(Batch((batches(at, at + 200),)))
            at += 200
            print(at, flush=True)

anyio.run(main)
"""


def written_until_killed(path: Path, at: int) -> int:
    """Start a writer at an offset and kill it in mid-flow; returns the last progress that it reported."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(at)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(5):
            at = int(writer.stdout.readline())
        writer.kill()
        return at


@pytest.mark.long
async def test_killed_in_the_middle_of_a_write(tmp_path: Path) -> None:
    """What `write` returned for is there; the rest is torn, and the next writer repairs it."""
    at = 0
    for _ in range(3):
        at = written_until_killed(tmp_path, at)
        await write(tmp_path, batches(at, at + 10))
        found = content(directory(tmp_path))
        end = at + 10
        while len(log_bytes(end, end + 10)) <= len(found) - len(log_bytes(0, end)):
            end += 10
        assert found == log_bytes(0, end)


async def test_invalid_options(tmp_path: Path) -> None:
    for options, fault in (
        ({}, "path: missing"),
        ({"path": "a", "segment_bytes": "2GiB"}, "segment_bytes"),
        ({"path": "a", "segment_time": "0s"}, "segment_time"),
    ):
        with pytest.raises(ConfigError, match=fault):
            SegmentsSink(options, context())
