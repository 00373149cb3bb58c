"""The sink `parquet` without a broker: the contract of sinks, the content of its files, and rejected options."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kzconsumer import clock
from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.sinks.interface import Batch, RecordsRejectedError, Sink, SinkContext
from kzconsumer.testing.sink_contract import contract_context
from kzconsumer_files.directory_target import Target
from kzconsumer_files.parquet import ParquetSink
from kzconsumer_files.range_names import TargetOwner, data_file
from tests.support.copied import copied
from tests.support.range_data import TIME, range_data, record
from tests.support.sink_contract import OurSinkContract
from tests.support.zookeeper_sessions import until

pytestmark = pytest.mark.timeout(180)


class TestContract(OurSinkContract):
    sets_aside = True

    def sink(self, directory: Path) -> Sink:
        return ParquetSink({"path": str(directory / "out")}, contract_context())

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        return ds.dataset(directory / "out", format="parquet").to_table(columns=["value"])["value"].to_pylist()

    def copy(self, directory: Path) -> Callable[[], None]:
        return copied(directory / "out")


def made(
    path: Path, group: str = "g", safe_until: Callable[[], float] = lambda: math.inf, **options: str
) -> ParquetSink:
    context = SinkContext(group=group, member="m", cluster="c", safe_until=safe_until)
    return ParquetSink({"path": str(path), **options}, context)


@pytest.mark.parametrize("codec", ["snappy", "none", "gzip", "zstd"])
async def test_a_range_is_a_file_with_all_columns(tmp_path: Path, codec: str) -> None:
    with_headers = record(7, headers=[{"key": "h", "value": b"x"}], key=None)
    part = range_data("t", 3, 5, 10, [record(5), with_headers, record(9, value=None)])
    async with made(tmp_path / "out", codec=codec) as sink:
        await sink.write(Batch((part,)))
    file = tmp_path / "out" / data_file(part)
    rows = pq.read_table(file)
    assert [f"{each.name} {each.type}" for each in rows.schema] == [
        "key binary",
        "value binary",
        "topic string",
        "partition int32",
        "offset int64",
        "timestamp timestamp[us, tz=UTC]",
        "timestampType int32",
        "headers list<element: struct<key: string, value: binary>>",
    ]
    assert rows.column("offset").to_pylist() == [5, 7, 9]
    assert rows.column("key").to_pylist() == [b"k5", None, b"k9"]
    assert rows.column("value").to_pylist() == [b"v5", b"v7", None]
    assert rows.column("headers").to_pylist() == [None, [{"key": "h", "value": b"x"}], None]
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [(TIME + n) * 1000 for n in (5, 7, 9)]
    compression = pq.read_metadata(file).row_group(0).column(1).compression
    assert compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())


FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999


@pytest.mark.parametrize("bad", [FIRST - 1, LAST + 1, 1_700_000_000_000_000_000, -(1 << 63), (1 << 63) - 1])
async def test_a_record_with_a_timestamp_that_no_reader_has_is_rejected(tmp_path: Path, bad: int) -> None:
    """Of the range nothing is published; then all of it but that record. The bounds themselves are times."""
    times = [FIRST, LAST, bad, None, bad, TIME]
    part = range_data("t", 0, 0, 6, [record(offset, timestamp=time) for offset, time in enumerate(times)], batches=6)
    good = range_data("t", 1, 0, 3)
    async with made(tmp_path) as sink:
        with pytest.raises(RecordsRejectedError) as raised:
            await sink.write(Batch((part, good)))
        found = [(each.partition, each.offset, each.error_class) for each in raised.value.records]
        assert found == [(0, 2, "unstorable"), (0, 4, "unstorable")]
        assert list(tmp_path.glob("*.parquet")) == []
        await sink.write(Batch((part.without(((2, 3), (4, 5))), good)))
    table = pq.read_table(tmp_path / data_file(part))
    assert table.column("offset").to_pylist() == [0, 1, 3, 5]
    expected = [FIRST * 1000, LAST * 1000, None, TIME * 1000]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == expected


async def test_the_first_of_two_writers_wins_and_a_range_without_records_is_known(tmp_path: Path) -> None:
    first, second = range_data("t", 0, 0, 3), range_data("t", 0, 0, 3, [record(0, value=b"other")])
    empty = range_data("t", 1, 4, 9, [])
    async with made(tmp_path) as one, made(tmp_path) as other:
        await one.write(Batch((first,)))
        await other.write(Batch((second, empty), is_replay=True))
        assert await one.has([first.identity, empty.identity]) == [first.identity, empty.identity]
        held = await other.holdings(count_rows=True)
    assert [(each.records_in, each.rows, each.faults) for each in held.ranges] == [(3, 3, ()), (0, 0, ())]
    assert (held.strays, held.leftovers) == ((), ())
    assert pq.read_table(tmp_path / data_file(first)).column("value").to_pylist() == [b"v0", b"v1", b"v2"]


@pytest.mark.parametrize("topic", ["_schemas", ".hidden"])
async def test_readers_see_a_topic_whose_name_begins_like_those_of_files_that_they_ignore(
    tmp_path: Path, topic: str
) -> None:
    """Spark, Hive and Arrow ignore these files. The ledger is folded here, which finds files by their names."""
    async with made(tmp_path) as sink:
        for first in range(0, 120, 3):
            await sink.write(Batch((range_data(topic, 0, first, first + 3),)))
    Target(tmp_path).fold()
    assert ds.dataset(tmp_path, format="parquet").count_rows() == 120
    held = await made(tmp_path).holdings(count_rows=True)
    assert sum(each.rows or 0 for each in held.ranges) == 120
    assert (held.strays, [each.faults for each in held.ranges if each.faults]) == ((), [])


async def test_a_range_decided_for_by_a_dead_writer_is_published_by_the_next(tmp_path: Path) -> None:
    part = range_data("t", 0, 0, 3)
    async with made(tmp_path) as sink:
        await sink.write(Batch((part,)))
    entry = next((tmp_path / "_kzconsumer").glob("t+*.json"))
    decision = tmp_path / "_kzconsumer" / "publishing" / entry.name
    entry.rename(decision)  # as if it had been killed just before the range was entered
    async with made(tmp_path) as sink:
        assert await sink.has([part.identity]) == [part.identity]
    assert not decision.exists()


async def test_nothing_is_published_without_a_lease_and_a_write_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    until = [0.0]
    part = range_data("t", 0, 0, 3)
    async with made(tmp_path, safe_until=lambda: until[0]) as sink:
        with anyio.move_on_after(0.3) as scope:
            await sink.write(Batch((part,)))
        assert scope.cancelled_caught
        assert list(tmp_path.glob("*.parquet")) == []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.write, Batch((part,)))
            await anyio.sleep(0.1)
            until[0] = clock.now() + 60
        assert len(list(tmp_path.glob("*.parquet"))) == 1


@pytest.mark.parametrize("call", ["has", "set_aside", "write"])
async def test_a_stop_waits_for_a_write_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A disk or a store that does not answer, as NFS does for hours, holds up no other call of the sink."""
    part, answers = range_data("t", 0, 0, 3), threading.Event()
    calls: dict[str, Callable[[ParquetSink], Coroutine[Any, Any, object]]] = {
        "has": lambda sink: sink.has([part.identity]),
        "set_aside": lambda sink: sink.set_aside(part.identity, 3),
        "write": lambda sink: sink.write(Batch((part,))),
    }
    read = Target.missing if call != "set_aside" else Target.set_aside

    def hangs(*arguments: Any) -> Any:
        hung.set()
        answers.wait(5)
        returned.set()
        return read(*arguments)

    hung, returned = threading.Event(), threading.Event()
    async with made(tmp_path) as sink:
        monkeypatch.setattr(Target, read.__name__, hangs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(calls[call], sink)
            await until(hung.is_set)
            tasks.cancel_scope.cancel()
            if call == "write":
                threading.Timer(0.2, answers.set).start()
        assert returned.is_set() == (call == "write")
        answers.set()


async def test_a_sink_that_is_cancelled_leaves_what_one_that_ends_leaves(tmp_path: Path) -> None:
    left = []
    for name in ("ends", "cancelled"):
        with anyio.CancelScope() as scope:
            async with made(tmp_path / name):
                if name == "cancelled":
                    scope.cancel()
                await anyio.lowlevel.checkpoint()
        left.append({str(each.relative_to(tmp_path / name)) for each in (tmp_path / name).rglob("*")})
    assert left[0] == left[1] != set()


async def test_a_disk_error_is_a_failure_of_the_sink(tmp_path: Path) -> None:
    async with made(tmp_path) as sink:
        await sink.write(Batch((range_data("t", 0, 0, 3),)))
        publishing = tmp_path / "_kzconsumer" / "publishing"
        publishing.rmdir()
        publishing.touch()
        with pytest.raises(SinkError, match=f"parquet files in {tmp_path}: .*Not a directory"):
            await sink.write(Batch((range_data("t", 0, 3, 6),)))
        with pytest.raises(SinkError, match="Not a directory"):
            await sink.set_aside(range_data("t", 0, 6, 9).identity, 3)
        publishing.unlink()


async def test_a_range_that_overlaps_a_published_one_is_refused(tmp_path: Path) -> None:
    async with made(tmp_path) as sink:
        await sink.write(Batch((range_data("t", 0, 0, 5),)))
        with pytest.raises(SinkError, match="overlaps \\[0, 5\\)"):
            await sink.write(Batch((range_data("t", 0, 3, 8), range_data("t", 1, 0, 1))))
        assert await sink.has([range_data("t", 1, 0, 1).identity])


async def test_a_directory_of_another_group_sink_or_format(tmp_path: Path) -> None:
    async with made(tmp_path / "out"):
        pass
    with pytest.raises(ConfigError, match="belongs to group g of cluster c, sink parquet; this is group h"):
        await made(tmp_path / "out", group="h").__aenter__()
    with pytest.raises(SinkError, match="belongs to group g"):
        await made(tmp_path / "out", group="h").holdings(count_rows=False)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "theirs.parquet").touch()
    with pytest.raises(ConfigError, match=r"is not empty \(theirs.parquet\)"):
        await made(foreign).__aenter__()
    other = Target(tmp_path / "orc")
    sink = made(tmp_path / "orc")
    other.mark(TargetOwner(cluster="c", group="g", sink="parquet"))
    other.settle_layout("orc", ())
    with pytest.raises(ConfigError, match="format is orc, these settings say parquet"):
        await sink.__aenter__()


def test_options_and_a_path_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="codec"):
        made(tmp_path, codec="lz5")
    with pytest.raises(ConfigError, match="path"):
        ParquetSink({}, contract_context())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"{tmp_path}/file/out cannot be used: .*file is not a directory"):
        made(tmp_path / "file" / "out").check()
    made(tmp_path / "new" / "out").check()
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a file system")
def test_a_path_that_is_mounted_read_only_is_not_blamed_on_the_user(tmp_path: Path) -> None:
    """As every path is outside of its own directory, for a hardened unit."""
    asked = "import sys; from kzconsumer_files.target_writer import require_usable; require_usable(sys.argv[1])"
    mounted = f"mount -t tmpfs -o ro none {tmp_path} && exec {sys.executable} -c '{asked}' {tmp_path}/out"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted], capture_output=True, text=True, check=False)
    expected = (
        f"path: {tmp_path}/out cannot be used: {tmp_path} is mounted read-only (for a unit of systemd: ReadWritePaths=)"
    )
    assert expected in done.stderr, done.stderr


def test_a_replay_goes_elsewhere() -> None:
    assert ParquetSink.elsewhere({"path": "a", "codec": "zstd"}, "b") == {"path": "b", "codec": "zstd"}
