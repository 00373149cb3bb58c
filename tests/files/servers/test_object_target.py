"""Targets of files in an object store: one of two writers wins, stores without conditional puts are refused."""

from __future__ import annotations

import base64
import math
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import parse_qs, unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kzconsumer.errors import ConfigError, DestinationWentBackError, PluginError, SinkError
from kzconsumer.installation import pip_install
from kzconsumer.sinks.interface import Batch, Sink, SinkContext
from kzconsumer.testing.sink_contract import contract_context
from kzconsumer_files.holdings import files
from kzconsumer_files.names import RangeOverlap, TargetOwner, data_file, identity_of
from kzconsumer_files.object_store import ObjectStore as Place
from kzconsumer_files.object_store import StoreUnavailable
from kzconsumer_files.object_target import ObjectTarget
from kzconsumer_files.parquet import ParquetSink
from kzconsumer_files.private_directory import PrivateDirectory, local_attempts
from kzconsumer_files.publication import NotPublished, SetAside, StagedRange
from kzconsumer_sandbox.servers.configuration import HOST, free_port
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.batch_ranges import batch_range
from tests.support.extent import extent, only_nightly
from tests.support.object_store import AzureStore, Conditions, ObjectStore, Scheme
from tests.support.range_data import range_data, record
from tests.support.store_contract import StoreContract
from tests.support.zookeeper_sessions import until

pytestmark = pytest.mark.timeout(600)
OWNER = TargetOwner(cluster="c", group="g")


def free() -> None:
    """The lease lasts."""


class TestContract(StoreContract):
    sets_aside = True

    def sink(self, directory: Path) -> Sink:
        reach = self.reach(directory)
        path = reach.lake.replace("s3://", "s3a://")
        return ParquetSink({"path": f"{path}/", "store_options": reach.options}, contract_context())

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        lake = ds.dataset("lake", format="parquet", filesystem=self.store.filesystem)
        found: list[bytes | None] = lake.to_table(columns=["value"])["value"].to_pylist()
        return found


@only_nightly
class TestContractGoogle(TestContract):
    scheme = "gs"


@only_nightly
class TestContractAzure(TestContract):
    scheme = "abfss"


# Of Google's and Azure's stores a slice is in `make test`: one of two writers wins, the probe refuses.
EACH = pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"], indirect=True)
EACH_BY_NIGHT = pytest.mark.parametrize(
    "scheme", ["s3", *(pytest.param(each, marks=only_nightly) for each in ("gs", "abfss"))], indirect=True
)


@pytest.fixture
def scheme(request: pytest.FixtureRequest) -> Scheme:
    found: Scheme = getattr(request, "param", "s3")
    return found


@pytest.fixture
def server(
    request: pytest.FixtureRequest, scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    if scheme != "s3":
        with started(tmp_path, monkeypatch, scheme) as store:
            yield store
        return
    store = request.getfixturevalue("amazon")
    for key, value in store.environment.items():
        monkeypatch.setenv(key, value)
    yield store


@contextmanager
def started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: Scheme, conditions: Conditions = "all"
) -> Iterator[ObjectStore]:
    with ObjectStore.running(tmp_path / "store", conditions, scheme) as store:
        for key, value in store.environment.items():
            monkeypatch.setenv(key, value)
        yield store


def target_in(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> ObjectTarget:
    """That of a member with a temporary directory of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    target = ObjectTarget(Place(store.uri("lake"), store.options))
    target.mark(OWNER)
    return target


def planned(number: int, first: int = 0, until: int = 3, topic: str = "t") -> BatchRange:
    return batch_range(topic, number, first, until)


def staged(attempt: Path, part: BatchRange, text: str, *layout: str) -> StagedRange:
    """One row in each directory of `layout`."""
    found: list[tuple[Path, str]] = []
    for place in layout:
        file = attempt / f"{part.partition}-{len(found)}"
        pq.write_table(pa.table({"text": [text]}), file)
        found.append((file, f"{place}/{data_file(part)}" if place else data_file(part)))
    return StagedRange(part, len(found), 0, found)


class Racer:
    """One of two writers, whose rows lie in different directories."""

    def __init__(self, target: ObjectTarget, name: str, layout: Sequence[str]) -> None:
        self._target = target
        self._name = name
        self._layout = layout
        self._own = PrivateDirectory(target.attempts)
        self.won: list[int] = []

    def publish(self, number: int, start: threading.Barrier) -> None:
        attempt = self._own.path / str(number)
        attempt.mkdir()
        # Each third range has no rows for one of them.
        layout = () if number % 3 == 0 and self._name == "b" else self._layout
        batch = [staged(attempt, planned(number), self._name, *layout)]
        start.wait()
        if self._target.publish(batch, attempt, free):
            self.won.append(number)


def faults_of_races(store: ObjectStore, target: Callable[[str], ObjectTarget], rounds: int) -> list[str]:
    """What is wrong after two writers have published the same ranges at the same time.

    They race on until each has won: on an idle machine one may be ahead for many rounds.
    """
    racers = [
        Racer(target("a"), "a", ("day=1", "day=2")),
        Racer(target("b"), "b", ("day=2", "day=3", "day=4")),
    ]
    with ThreadPoolExecutor(2) as threads:
        raced = 0
        while raced < rounds or (raced < 20 * rounds and not all(racer.won for racer in racers)):
            start = threading.Barrier(2)
            list(threads.map(lambda racer: racer.publish(raced, start), racers))  # noqa: B023
            raced += 1
    judge = target("judge")
    entries = {entry.partition: entry for entry in judge.entries()}
    rows: dict[int, list[str]] = {}
    for name in judge.visible():
        with closing(judge.open(name)) as file:
            rows.setdefault(int(name.split("+")[1]), []).append(pq.read_table(cast(IO[Any], file))["text"][0].as_py())
    one, other = (racer.won for racer in racers)
    assert min(len(one), len(other)) > 0, "they never met"
    faults = []
    for number in range(raced):
        found = rows.get(number, [])
        if (number in one) == (number in other):
            faults.append(f"range {number} was won by {(number in one) + (number in other)} writers")
        if len(set(found)) > 1:
            faults.append(f"range {number} has rows of both writers")
        if len(found) != entries[number].records_out:
            faults.append(f"range {number} has {len(found)} rows, its entry says {entries[number].records_out}")
    left = [name for name in store.objects() if "/publishing/" in name or "/attempts/" in name]
    return [*faults, *(f"{name} is left" for name in left)]


@EACH_BY_NIGHT
def test_a_late_decision_is_void(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer saw the range missing, and was suspended until another one had published it."""
    one, late = (target_in(server, monkeypatch, tmp_path / name) for name in "ab")
    assert one.missing([planned(0)]) == late.missing([planned(0)]) == [planned(0)]
    for target, name, layout, published in ((one, "one", "day=1", 1), (late, "late", "day=2", 0)):
        attempt = PrivateDirectory(target.attempts).path / "1"
        attempt.mkdir()
        assert target.publish([staged(attempt, planned(0), name, layout)], attempt, free) == published
    assert list(one.visible()) == [f"day=1/{data_file(planned(0))}"]
    assert not [name for name in server.objects() if "/publishing/" in name or "/attempts/" in name]


@EACH_BY_NIGHT
def test_a_store_that_was_restored_takes_nothing_more(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


@EACH_BY_NIGHT
def test_lost_replies_of_conditional_puts(scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client repeats a put that has succeeded, and is answered that there is such an object."""
    with started(tmp_path, monkeypatch, scheme, "lost") as store:
        target = target_in(store, monkeypatch, tmp_path / "a")
        attempt = PrivateDirectory(target.attempts).path / "1"
        attempt.mkdir()
        assert not Place(store.uri(), store.options).create("control", b"")
        assert target.publish([staged(attempt, planned(0), "one", "")], attempt, free) == 1
        assert list(target.visible()) == [data_file(planned(0))]
        assert not [name for name in store.objects() if "/publishing/" in name or "/attempts/" in name]


@EACH
@pytest.mark.timeout(3600)
def test_one_of_two_writers_wins(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = faults_of_races(server, lambda name: target_in(server, monkeypatch, tmp_path / name), extent(12, 1000))
    assert found == []


@EACH_BY_NIGHT
def test_without_conditional_puts_races_have_two_winners(
    scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: this store ignores the condition, except where it is tested for it."""
    with started(tmp_path, monkeypatch, scheme, "probes") as store:
        found = faults_of_races(store, lambda name: target_in(store, monkeypatch, tmp_path / name), extent(15, 60))
    assert any("rows of both" in each or "won by 2" in each or "its entry says" in each for each in found), found


def made(store: ObjectStore, path: str | None = None, **options: object) -> ParquetSink:
    context = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)
    return ParquetSink({"path": path or store.uri("lake"), "store_options": store.options, **options}, context)


@EACH
async def test_a_store_without_conditional_puts_is_refused(
    scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path, monkeypatch, scheme, "none") as store:
        message = (
            rf"\[sink.options\] path: {store.uri('lake')}: this store does not honour conditional writes \(If-None"
        )
        with pytest.raises(ConfigError, match=message):
            async with made(store):
                pass
        assert store.objects() == []


@EACH_BY_NIGHT
async def test_what_a_store_holds_is_verified(server: ObjectStore) -> None:
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
    server.filesystem.delete_file(names[0])
    with server.filesystem.open_output_stream("lake/more.parquet") as stream:
        stream.write(b"?")
    async with made(server) as sink:
        held = await sink.holdings(count_rows=True)
    assert [each.faults for each in held.ranges if each.faults] == [(f"{data_file(hidden)} is gone",)]
    assert held.strays == ("more.parquet is of no range of the ledger",)


@EACH_BY_NIGHT
async def test_places_of_others_are_refused(server: ObjectStore) -> None:
    async with made(server):
        pass
    context = SinkContext(group="other", member="m", cluster="c", safe_until=lambda: math.inf)
    with pytest.raises(ConfigError, match=f"{server.uri('lake')} belongs to group g of cluster c, sink parquet"):
        async with ParquetSink({"path": server.uri("lake"), "store_options": server.options}, context):
            pass
    with pytest.raises(ConfigError, match=rf"{server.uri()} is not empty \(lake\) and not marked"):
        async with made(server, f"{server.uri()}/"):
            pass


@EACH_BY_NIGHT
def test_overlapping_ranges_are_refused(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that another writer has published, before and since."""
    one, other = (target_in(server, monkeypatch, tmp_path / name) for name in "ab")

    def publish(target: ObjectTarget, first: int, until: int) -> int:
        attempt = PrivateDirectory(target.attempts).path / "1"
        attempt.mkdir()
        return target.publish([staged(attempt, planned(0, first, until), "x", "")], attempt, free)

    assert [publish(one, 0, 10), publish(other, 10, 20), publish(one, 20, 30)] == [1, 1, 1]
    for target in (one, other):
        assert publish(target, 10, 20) == (target is other and 0)
        for first, end in ((5, 15), (5, 8), (25, 40), (0, 20), (0, 30)):
            with pytest.raises(RangeOverlap, match=r"overlaps \[\d+, \d+\), which is"):
                publish(target, first, end)
    assert len(list(one.visible())) == 3
    assert not [name for name in server.objects() if "/publishing/" in name or "/attempts/" in name]


@EACH_BY_NIGHT
def test_a_decided_range_is_published_by_the_next_process(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (target_in(server, monkeypatch, tmp_path / name) for name in "ab")
    looks = iter([None, TimeoutError()])

    def lost() -> None:
        if (error := next(looks)) is not None:
            raise error

    attempt = PrivateDirectory(one.attempts).path / "1"
    attempt.mkdir()
    with pytest.raises(TimeoutError):
        one.publish([staged(attempt, planned(0), "first", "day=1", "day=a%2Fb é")], attempt, lost)
    assert list(other.visible()) == []
    assert files(other, "parquet", True).leftovers == (
        "t-0[0..3) is decided for and not there yet: the next start, or the next write of it, finishes it",
    )
    assert other.missing([planned(0), planned(1)]) == [planned(1)]
    assert sorted(other.visible()) == [f"day=1/{data_file(planned(0))}", f"day=a%2Fb é/{data_file(planned(0))}"]
    assert [each.rows for each in files(other, "parquet", True).ranges] == [2]
    assert one.publish([staged(attempt, planned(0), "again", "day=1", "day=a%2Fb é")], attempt, free) == 1


@EACH_BY_NIGHT
def test_ranges_of_long_topics_that_an_earlier_version_has_written_are_settled(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        before.setattr("kzconsumer_files.names.named_after", lambda topic, name, most=0: name(topic))
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


async def test_what_is_known_of_published_ranges_does_not_grow(server: ObjectStore) -> None:
    async with made(server) as sink:
        for first in range(0, 9, 3):
            await sink.write(Batch((range_data("t", 0, first, first + 3),)))
        target = sink.target.target
        assert isinstance(target, ObjectTarget)
        assert [len(each) for each in target._ledger._spans.values()] == [1]


@pytest.mark.parametrize("key", ["aws_secret_access_key", "AWS_ACCESS_KEY_ID", "azure_storage_sas_key", "aws_token"])
def test_credentials_are_no_options(key: str) -> None:
    with pytest.raises(ConfigError, match=f"store_options.{key} is not for a file that others read") as caught:
        ParquetSink({"path": "s3://bucket/lake", "store_options": {key: "my-own-key"}}, contract_context())
    assert "my-own-key" not in str(caught.value)


@EACH_BY_NIGHT
async def test_a_store_that_does_not_answer_is_named_without_credentials(server: ObjectStore) -> None:
    async with made(server) as sink:
        server.kill()
        with pytest.raises(SinkError, match=f"parquet files in {server.uri('lake')}: .*HTTP error") as caught:
            await sink.write(Batch((range_data("t", 0, 0, 3),)))
        assert server.secret not in str(caught.value)
        assert "\n" not in str(caught.value)


@EACH_BY_NIGHT
async def test_a_start_without_the_store_or_its_bucket(server: ObjectStore) -> None:
    """A store may come back, a bucket has to be made."""
    other = server.uri("lake", bucket="nobodys")
    missing = rf"\[sink.options\] path: .*{other}: .*(NoSuchBucket|ContainerNotFound)"
    with pytest.raises(ConfigError, match=missing) as caught:
        async with made(server, other):
            pass
    assert "\n" not in str(caught.value)
    server.kill()
    with pytest.raises(SinkError, match=f"parquet files in {server.uri('lake')}: {server.uri('lake')}: .*HTTP error"):
        async with made(server):
            pass


def test_options_that_no_store_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"aws_bukket": "x"}
    with pytest.raises(ConfigError, match=r"\[sink.options\] store_options: s3://bucket/lake: .*aws_bukket"):
        ParquetSink({"path": "s3://bucket/lake", "store_options": options}, contract_context())
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        PluginError, match=re.escape(f"needs obstore: {pip_install('object-store', 'kzconsumer-files')}")
    ):
        ParquetSink({"path": "s3://bucket/lake"}, contract_context())


def test_other_schemes_are_refused() -> None:
    with pytest.raises(ConfigError, match='path: "ftp://x/y" is not a directory, nor a URI with s3, s3a, gs, abfss'):
        ParquetSink({"path": "ftp://x/y"}, contract_context())


@EACH_BY_NIGHT
def test_a_store_that_ends_between_decision_and_copy(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


@EACH_BY_NIGHT
def test_staged_objects_that_are_gone(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the way out, which is taken here."""
    target = target_in(server, monkeypatch, tmp_path / "a")
    attempt = PrivateDirectory(target.attempts).path / "1"
    attempt.mkdir()

    def expire() -> None:
        if next(looks):
            server.filesystem.delete_dir_contents("lake/_kzconsumer/attempts")

    looks = iter([False, True])
    with pytest.raises(NotPublished, match=r"t-0\[0\.\.3\) .*: staged objects are gone, .*: stop the group, remove"):
        target.publish([staged(attempt, planned(0), "x", "")], attempt, expire)
    (decision,) = target.decisions()
    (place,) = (name for name in server.objects() if "/publishing/" in name)
    server.filesystem.delete_file(place)
    looks = iter([False, False])
    assert target.publish([staged(attempt, planned(0), "y", "")], attempt, expire) == 1
    assert list(target.visible()) == list(decision.files)


def test_staged_objects_of_a_failed_attempt_are_removed_once_the_range_is_published(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    async with made(server) as sink:
        shutil.rmtree(tmp_path / "tmp")
        part = range_data("t", 0, 0, 3)
        await sink.write(Batch((part,)))
        assert await sink.has([part.identity]) == [part.identity]


async def test_a_staging_directory_of_others(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.parametrize(
    ("path", "role", "missing"),
    [
        ("s3://bucket/lake", "AWS_METADATA_ENDPOINT=http://{}", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("gs://bucket/lake", "GCE_METADATA_HOST={}", "GOOGLE_APPLICATION_CREDENTIALS"),
        (
            "abfss://bucket@account.dfs.core.windows.net/lake",
            "AZURE_MSI_ENDPOINT=http://{}/metadata/identity/oauth2/token",
            "AZURE_STORAGE_ACCOUNT_KEY",
        ),
    ],
)
def test_missing_credentials_are_named(path: str, role: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in missing.split(" and "):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GCE_METADATA_IP", f"{HOST}:{free_port()}")  # where Google's is looked for otherwise
    variable, _, value = role.partition("=")
    monkeypatch.setenv(variable, value.format(f"{HOST}:{free_port()}"))
    with pytest.raises(StoreUnavailable, match=f"set {missing} in the env"):
        Place(path, {}).read("x")


@EACH_BY_NIGHT
async def test_credentials_that_are_refused(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, without them."""
    if server.scheme == "s3":
        pytest.skip("moto's server takes any credentials")
    wrong = base64.b64encode(b"other" * 8).decode()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", wrong)
    with pytest.raises(ConfigError, match=rf"\[sink.options\] path: .*{server.uri('lake')}: .*40[13]") as caught:
        async with made(server):
            pass
    assert "\n" not in str(caught.value)
    assert wrong not in str(caught.value)


@only_nightly
def test_signatures_of_azure_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the URI of each request."""
    with started(tmp_path, monkeypatch, "abfss") as store:
        assert isinstance(store, AzureStore)
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", store.shared_access_signature())
        place = Place(store.uri("lake"), store.options)
        assert place.create("x", b"")
        with pytest.raises(FileNotFoundError, match="ContainerNotFound") as refused:
            Place(store.uri("lake", bucket="nobodys"), store.options).create("x", b"")
        store.kill()
        with pytest.raises(StoreUnavailable, match="HTTP error") as silent:
            place.read("x")
    (signature,) = parse_qs(store.shared_access_signature())["sig"]
    for caught in (refused, silent):
        assert signature not in unquote(str(caught.value))


async def test_a_copy_of_azure_that_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is not removed before it has ended, and it is not begun again: the file would be lost."""
    with started(tmp_path, monkeypatch, "abfss", "late") as store:
        target = target_in(store, monkeypatch, tmp_path / "a")
        attempt = PrivateDirectory(target.attempts).path / "1"
        attempt.mkdir()
        assert target.publish([staged(attempt, planned(0), "one", "day=1", "day=2")], attempt, free) == 1
        found = []
        for name in target.visible():
            with closing(target.open(name)) as file:
                found += pq.read_table(cast(IO[Any], file))["text"].to_pylist()
        place = Place(store.uri("lake"), store.options)
        place.create("source", b"content")
        await until(lambda: place.copy("source", "copy"))
        assert place.copy("source", "copy")
        assert place.read("copy") == b"content"
    assert found == ["one", "one"]
