"""The contract of a target of files in an object store, whichever it is: `server` is a fixture of the class."""

from __future__ import annotations

import math
import pickle
import shutil
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kzconsumer.errors import ConfigError, DestinationWentBackError
from kzconsumer.sinks.interface import Batch, SinkContext
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.holdings import files
from kzconsumer_files.object_store import ObjectStore as Place
from kzconsumer_files.object_store import StoreUnavailable
from kzconsumer_files.object_target import ObjectTarget
from kzconsumer_files.parquet import ParquetSink
from kzconsumer_files.private_directory import PrivateDirectory, local_attempts
from kzconsumer_files.publication import NotPublished, SetAside, StagedRange
from kzconsumer_files.range_names import NotOurs, RangeOverlap, TargetOwner, data_file, identity_of
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.batch_ranges import batch_range
from tests.support.object_store import ObjectStore
from tests.support.range_data import range_data, record
from tests.support.reachable import reachable
from tests.support.store_in_memory import StoreInMemory

AnyStore: TypeAlias = ObjectStore | StoreInMemory
OWNER = TargetOwner(cluster="c", group="g")


def free() -> None:
    """The lease lasts."""


def target_in(store: AnyStore, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> ObjectTarget:
    """That of a member with a temporary directory of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    target = ObjectTarget(Place(store.uri("lake"), store.options))
    target.mark(OWNER)
    return target


def planned(number: int, first: int = 0, until: int = 3, topic: str = "t") -> BatchRange:
    return batch_range(topic, number, first, until)


def staged(
    attempt: Path, part: BatchRange, text: str, *layout: str, tasks_of: ObjectTarget | None = None
) -> StagedRange:
    """One row in each directory of `layout`; put into the store by tasks of another machine, if its target is given."""
    found: list[tuple[Path, str]] = []
    for place in layout:
        file = attempt / f"{part.partition}-{len(found)}"
        pq.write_table(pa.table({"text": [text]}), file)
        found.append((file, f"{place}/{data_file(part)}" if place else data_file(part)))
    if tasks_of is None:
        return StagedRange(part, len(found), 0, found)
    put = pickle.loads(pickle.dumps(tasks_of.put(attempt)))
    names = [f"of-a-task-{number}" for number in range(len(found))]
    for (file, _), name in zip(found, names, strict=True):
        put(file, name)
        file.unlink()
    return StagedRange(part, len(found), 0, found, names)


def made(store: AnyStore, path: str | None = None, **options: object) -> ParquetSink:
    context = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)
    return ParquetSink({"path": path or store.uri("lake"), "store_options": store.options, **options}, context)


class ObjectTargetContract:
    def test_a_late_decision_is_void(self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its writer saw the range missing, and was suspended until another one had published it."""
        one, late = (target_in(server, monkeypatch, tmp_path / name) for name in "ab")
        assert one.missing([planned(0)]) == late.missing([planned(0)]) == [planned(0)]
        for target, name, layout, published in ((one, "one", "day=1", 1), (late, "late", "day=2", 0)):
            attempt = PrivateDirectory(target.attempts).path / "1"
            attempt.mkdir()
            assert target.publish([staged(attempt, planned(0), name, layout)], attempt, free) == published
        assert list(one.visible()) == [f"day=1/{data_file(planned(0))}"]
        assert not [name for name in server.objects() if "/publishing/" in name or "/attempts/" in name]

    def test_a_store_that_was_restored_takes_nothing_more(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a member that remembers what it had, or another one; each range follows the one before."""
        target, other = (target_in(server, monkeypatch, tmp_path / name) for name in "ab")

        def publish(by: ObjectTarget, number: int, *follows: int) -> int:
            attempt = PrivateDirectory(by.attempts).path / "1"
            attempt.mkdir()
            before = [identity_of(part(each)) for each in follows]
            return by.publish([staged(attempt, part(number), "", "")], attempt, free, before)

        def part(number: int) -> BatchRange:
            return planned(0, 3 * number, 3 * number + 3)

        assert publish(target, 0) == publish(target, 1, 0) == publish(other, 2, 1) == publish(target, 3, 2) == 1
        restore = server.copied()
        assert publish(target, 4, 3) == publish(target, 5, 4) == publish(other, 6, 5) == 1, "a copy changes nothing"
        restore()
        for by in (target, other, target_in(server, monkeypatch, tmp_path / "c")):
            with pytest.raises(DestinationWentBackError, match="t-0: offsets 12 to 21 were written and committed"):
                publish(by, 7, 6)
        assert not [name for name in server.objects() if "/publishing/" in name or "/attempts/" in name]
        assert publish(target, 4, 3) == 1

    async def test_what_a_store_holds_is_verified(self, server: AnyStore) -> None:
        first, other = range_data("t", 0, 0, 3), range_data("t", 0, 0, 3, [record(0, value=b"other")])
        empty = range_data("_t", 1, 4, 9, [])
        hidden = range_data("_t", 1, 9, 12)
        async with made(server) as one, made(server) as two:
            assert one.fingerprint == two.fingerprint != ""
            await one.write(Batch((first,)))
            await two.write(Batch((other, empty), is_replay=True))
            await two.write(Batch((hidden,)))
            assert await one.has([first.identity, hidden.identity._replace(until=13)]) == [first.identity]
            held = await one.holdings(count_rows=True)
            assert sorted((each.records_in, each.rows, each.faults) for each in held.ranges) == [
                (0, 0, ()), (3, 3, ()), (3, 3, ())
            ]  # fmt: skip
            assert (held.strays, held.leftovers) == ((), ())
        names = [name for name in server.objects() if "_kzconsumer" not in name]
        assert names == [f"lake/{data_file(hidden)}", f"lake/{data_file(first)}"]
        server.remove(names[0])
        server.put("lake/more.parquet", b"?")
        async with made(server) as sink:
            held = await sink.holdings(count_rows=True)
        assert [each.faults for each in held.ranges if each.faults] == [(f"{data_file(hidden)} is gone",)]
        assert held.strays == ("more.parquet is of no range of the ledger",)

    async def test_places_of_others_are_refused(self, server: AnyStore) -> None:
        async with made(server):
            pass
        context = SinkContext(group="other", member="m", cluster="c", safe_until=lambda: math.inf)
        with pytest.raises(ConfigError, match=f"{server.uri('lake')} belongs to group g of cluster c, sink parquet"):
            async with ParquetSink({"path": server.uri("lake"), "store_options": server.options}, context):
                pass
        with pytest.raises(ConfigError, match=rf"{server.uri()} is not empty \(lake\) and not marked"):
            async with made(server, f"{server.uri()}/"):
                pass

    def test_a_target_is_not_inside_another_one_or_a_table(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Readers of the target would see its files; what tidies up the table would remove them."""
        target_in(server, monkeypatch, tmp_path)
        for name in ("delta/_delta_log/1.json", "made/_kzconsumer/delta.json", "ice/metadata/0-5e9d.metadata.json"):
            server.put(name, b"{}")
        server.put("lake/metadata/0.json", b"{}")
        there = server.objects()

        def mark(path: str, owner: TargetOwner = OWNER) -> None:
            ObjectTarget(Place(server.uri(path), server.options)).mark(owner)

        refused = {
            "lake/sub/more": f"is inside the target {server.uri('lake')}, whose readers",
            "delta/sub/more": f"is inside the Delta table {server.uri('delta')}, whose VACUUM",
            "made/sub": f"is inside the Delta table {server.uri('made')}, whose VACUUM",
            "made": "is a Delta table: give another path",
            "ice/sub": f"is inside the Iceberg table {server.uri('ice')}, whose removal of orphan files",
        }
        with monkeypatch.context() as patch:
            patch.setattr(Place, "create", None)  # nothing is made where a target is refused, not even for a moment
            for path, refusal in refused.items():
                with pytest.raises(NotOurs, match=f"^{server.uri(path)} {refusal}"):
                    mark(path)
            with pytest.raises(NotOurs, match="belongs to group g"):
                mark("lake", TargetOwner(cluster="c", group="other"))
        assert server.objects() == there
        for skipped in ("lake/_sub", "lake/.sub/more"):
            mark(skipped)

    def test_a_range_that_a_later_epoch_has_is_refused(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The group's nodes are of before a reset, or of before two of them."""
        one, other = (target_in(server, monkeypatch, tmp_path / name) for name in "ab")

        def publish(target: ObjectTarget, epoch: int, first: int, until: int) -> int:
            attempt = PrivateDirectory(target.attempts).path / "1"
            attempt.mkdir(exist_ok=True)
            part = msgspec.structs.replace(planned(0, first, until), epoch=epoch)
            return target.publish([staged(attempt, part, "x", "")], attempt, free)

        assert [publish(one, epoch, 100, 110) for epoch in (10, 11)] == [1, 1]
        assert publish(one, 10, 110, 120) == publish(one, 9, 90, 100) == 1
        for target, (first, until) in product((one, other), ((100, 110), (95, 101), (100, 300), (112, 115))):
            text = rf"t-0 \[{first}, {until}\) of epoch 9 .* of a later epoch.* --to-offset 120 --topic t:0 --execute"
            with pytest.raises(RangeOverlap, match=text):
                publish(target, 9, first, until)
            with pytest.raises(RangeOverlap):
                target.set_aside(identity_of(planned(0, first, until)), 9)
        assert [publish(one, *each) for each in ((9, 120, 130), (2, 50, 90), (12, 105, 107))] == [1, 1, 1]

    def test_a_decided_range_is_published_by_the_next_process(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = (target_in(server, monkeypatch, tmp_path / name) for name in "ab")
        looks = iter([None, TimeoutError()])

        def lost() -> None:
            if (error := next(looks)) is not None:
                raise error

        attempt = PrivateDirectory(one.attempts).path / "1"
        attempt.mkdir()
        first = staged(attempt, planned(0), "first", "day=1", "day=a%2Fb é", tasks_of=one)
        with pytest.raises(TimeoutError):
            one.publish([first], attempt, lost)
        assert list(other.visible()) == []
        assert files(other, "parquet", True).leftovers == (
            "t-0[0..3) is decided for and not there yet: the next start, or the next write of it, finishes it",
        )
        assert other.missing([planned(0), planned(1)]) == [planned(1)]
        assert sorted(other.visible()) == [f"day=1/{data_file(planned(0))}", f"day=a%2Fb é/{data_file(planned(0))}"]
        assert [each.rows for each in files(other, "parquet", True).ranges] == [2]
        assert one.publish([staged(attempt, planned(0), "again", "day=1", "day=a%2Fb é")], attempt, free) == 1

    def test_ranges_of_long_topics_that_an_earlier_version_has_written_are_settled(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It had the whole topic in the keys of a store."""
        earlier, target, other = (target_in(server, monkeypatch, tmp_path / name) for name in "abc")
        parts = [planned(0, first, first + 3, "t" * 210) for first in range(0, 21, 3)]

        def publish(by: ObjectTarget, part: BatchRange, *follows: BatchRange, lease: Callable[[], None] = free) -> int:
            attempt = PrivateDirectory(by.attempts).path / "1"
            attempt.mkdir()
            return by.publish([staged(attempt, part, "x", "")], attempt, lease, [identity_of(each) for each in follows])

        def lost() -> None:
            if next(looks):
                raise TimeoutError

        looks = iter([False, True])
        with monkeypatch.context() as before:
            before.setattr("kzconsumer_files.range_names.named_after", lambda topic, name, most=0: name(topic))
            assert publish(earlier, parts[0]) == publish(earlier, parts[1], parts[0]) == 1
            assert earlier.set_aside(identity_of(parts[2]), 3)
            with pytest.raises(TimeoutError):
                publish(earlier, parts[3], lease=lost)
        with pytest.raises(RangeOverlap):
            publish(target, planned(0, 10, 14, parts[0].topic))
        assert target.missing(parts) == parts[4:], "what it decided for is published"
        assert [target.has(each) for each in parts] == [True] * 4 + [False] * 3
        with pytest.raises(SetAside):
            target.require_published(parts[2])
        assert publish(target, parts[0]) == publish(target, parts[3]) == 0
        assert publish(target, parts[4], parts[3]) == publish(target, parts[5], parts[4]) == 1
        assert publish(other, parts[6], parts[1]) == 1
        for first in (1, 10, 16):
            with pytest.raises(RangeOverlap):
                publish(other, planned(0, first, first + 3, parts[0].topic))
        with pytest.raises(DestinationWentBackError, match="offsets 21 to 24 were written and committed"):
            publish(other, planned(0, 24, 27, parts[0].topic), planned(0, 21, 24, parts[0].topic))
        assert [each.identity.first for each in files(other, "parquet", True).ranges] == [0, 3, 9, 12, 15, 18]
        assert [each.rows for each in files(other, "parquet", True).ranges] == [1] * 6
        assert not [name for name in server.objects() if "/publishing/" in name or "/attempts/" in name]

    async def test_what_is_known_of_published_ranges_does_not_grow(self, server: AnyStore) -> None:
        async with made(server) as sink:
            for first in range(0, 9, 3):
                await sink.write(Batch((range_data("t", 0, first, first + 3),)))
            target = sink.target.target
            assert isinstance(target, ObjectTarget)
            assert len([each for each in reachable(target) if isinstance(each, Span)]) == 1

    def test_a_store_that_ends_between_decision_and_copy(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The batch fails at once: the outage is not a fault of each of its ranges."""
        target = target_in(server, monkeypatch, tmp_path / "a")
        attempt = PrivateDirectory(target.attempts).path / "1"
        attempt.mkdir()
        batch = [staged(attempt, planned(number), "x", "") for number in range(40)]
        looks = iter([lambda: None, server.kill])
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            target.publish(batch, attempt, lambda: next(looks)())
        assert time.monotonic() - began < 30, "each range was tried"

    def test_staged_objects_that_are_gone(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The message names the way out, which is taken here."""
        target = target_in(server, monkeypatch, tmp_path / "a")
        attempt = PrivateDirectory(target.attempts).path / "1"
        attempt.mkdir()

        def expire() -> None:
            if next(looks):
                for name in server.objects():
                    if "/attempts/" in name:
                        server.remove(name)

        looks = iter([False, True])
        with pytest.raises(
            NotPublished, match=r"t-0\[0\.\.3\) .*: staged objects are gone, .*: stop the group, remove"
        ):
            target.publish([staged(attempt, planned(0), "x", "")], attempt, expire)
        (decision,) = target.decisions()
        (place,) = (name for name in server.objects() if "/publishing/" in name)
        server.remove(place)
        looks = iter([False, False])
        assert target.publish([staged(attempt, planned(0), "y", "")], attempt, expire) == 1
        assert list(target.visible()) == list(decision.files)

    def test_staged_objects_of_a_failed_attempt_are_removed_once_the_range_is_published(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = target_in(server, monkeypatch, tmp_path / "a")
        own = PrivateDirectory(target.attempts).path

        def publish(number: int, require_lease: Callable[[], None]) -> None:
            attempt = own / str(number)
            attempt.mkdir()
            target.publish([staged(attempt, planned(0), "x", "")], attempt, require_lease)

        def lost() -> None:
            raise TimeoutError

        def left() -> list[str]:
            return [name.split("/")[-2] for name in server.objects() if "/attempts/" in name]

        with pytest.raises(TimeoutError):
            publish(1, lost)
        assert target.missing([planned(0)]) == [planned(0)]
        assert left() == ["1"]  # its decision may still arrive
        publish(2, free)
        assert target.missing([planned(0)]) == []
        assert left() == []

    async def test_a_staging_directory_that_a_clean_up_removed(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
        async with made(server) as sink:
            shutil.rmtree(tmp_path / "tmp")
            part = range_data("t", 0, 0, 3)
            await sink.write(Batch((part,)))
            assert await sink.has([part.identity]) == [part.identity]

    async def test_a_staging_directory_of_others(
        self, server: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A link may be another user's; our own directory becomes one that others cannot enter."""
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        (tmp_path / "theirs").mkdir()
        local_attempts().symlink_to(tmp_path / "theirs")
        with pytest.raises(ConfigError, match=r"kzconsumer-files-\d+ is not a directory of this user: remove"):
            async with made(server):
                pass
        local_attempts().unlink()
        local_attempts().mkdir(mode=0o755)
        async with made(server):
            assert local_attempts().stat().st_mode & 0o777 == 0o700
