"""Targets of files in an object store: one of two writers wins, stores without conditional puts are refused."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import parse_qs, unquote

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.sinks.interface import Batch, Sink
from kzconsumer.testing.sink_contract import contract_context
from kzconsumer_files.object_store import ObjectStore as Place
from kzconsumer_files.object_store import StoreUnavailable
from kzconsumer_files.object_target import ObjectTarget
from kzconsumer_files.parquet import ParquetSink
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.range_names import TargetOwner, data_file
from tests.support.extent import extent, only_nightly
from tests.support.object_store import AzureStore, Conditions, ObjectStore, Scheme
from tests.support.object_target_contract import ObjectTargetContract, free, made, planned, staged, target_in
from tests.support.range_data import range_data
from tests.support.store_contract import StoreContract
from tests.support.zookeeper_sessions import until

pytestmark = pytest.mark.timeout(600)
OWNER = TargetOwner(cluster="c", group="g")


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

    # By day in memory (plain/test_object_target.py, plain/test_store_machine.py), and with processes in a directory.

    @only_nightly
    def test_a_destination_that_went_back_takes_nothing_more(self) -> None:
        super().test_a_destination_that_went_back_takes_nothing_more()

    @only_nightly
    def test_a_range_is_set_aside_while_another_member_writes_it(self) -> None:
        super().test_a_range_is_set_aside_while_another_member_writes_it()

    @only_nightly
    def test_ranges_set_aside_are_never_written(self) -> None:
        super().test_ranges_set_aside_are_never_written()

    @only_nightly  # two writers: test_one_of_two_writers_wins
    def test_two_members_write_at_once(self) -> None:
        super().test_two_members_write_at_once()

    @only_nightly
    def test_recreated_topics_and_reset_offsets_are_different_records(self) -> None:
        super().test_recreated_topics_and_reset_offsets_are_different_records()


@only_nightly
class TestContractGoogle(TestContract):
    scheme = "gs"


@only_nightly
class TestContractAzure(TestContract):
    scheme = "abfss"


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


@only_nightly
@EACH
class TestObjectTarget(ObjectTargetContract):
    """By day in memory: `files/plain/test_object_target.py`."""


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


@pytest.mark.parametrize(
    "scheme",
    # By day what Azure does otherwise is tried in memory: plain/test_object_target.py, plain/test_store_machine.py.
    extent(["s3", "gs"], ["s3", "gs", "abfss"]),
    indirect=True,
)
@pytest.mark.timeout(3600)
def test_one_of_two_writers_wins(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = faults_of_races(server, lambda name: target_in(server, monkeypatch, tmp_path / name), extent(12, 1000))
    assert found == []


@only_nightly
@EACH
def test_without_conditional_puts_races_have_two_winners(
    scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: this store ignores the condition, except where it is tested for it."""
    with started(tmp_path, monkeypatch, scheme, "probes") as store:
        found = faults_of_races(store, lambda name: target_in(store, monkeypatch, tmp_path / name), extent(15, 60))
    assert any("rows of both" in each or "won by 2" in each or "its entry says" in each for each in found), found


@only_nightly
@EACH
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


@EACH_BY_NIGHT  # how a store may ignore them: plain/test_store_errors.py
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
    missing = rf"\[sink.options\] path: .*{other}: there is no such bucket or container: make it; .*"
    with pytest.raises(ConfigError, match=missing) as caught:
        async with made(server, other):
            pass
    assert "\n" not in str(caught.value)
    server.kill()
    with pytest.raises(SinkError, match=f"parquet files in {server.uri('lake')}: {server.uri('lake')}: .*HTTP error"):
        async with made(server):
            pass


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


@only_nightly
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
