"""What an object store must be able to do, its errors as those of Python, and a target's state in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError

from kzconsumer_files.object_store import ObjectStore, StateDirectory, StateFiles, StateObjects, StoreUnavailable
from kzconsumer_files.range_names import NotOurs
from tests.support.store_in_memory import Fault, StoreInMemory


@pytest.fixture
def store() -> Iterator[StoreInMemory]:
    with StoreInMemory().reached() as found:
        yield found


def client(store: StoreInMemory) -> ObjectStore:
    return ObjectStore(store.uri("lake"), {})


def test_a_store_that_honours_conditional_puts_is_left_as_it_was(store: StoreInMemory) -> None:
    client(store).require_conditional_puts("_state")
    assert store.calls > 2
    assert store.objects() == []


@pytest.mark.parametrize("kept", ["the second", "both"])
def test_a_store_that_replaces_an_object_is_refused(
    store: StoreInMemory, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it says so or not: two members could publish one range there."""
    put, written = obstore.put, list[object]()

    def ignoring(client: Any, name: str, data: Any, **how: object) -> None:
        if kept == "the second" and len(written) == 1:
            put(client, name, data)
            written.append(data)
            raise AlreadyExistsError("there is one")
        written.append(data)
        put(client, name, data)

    monkeypatch.setattr(obstore, "put", ignoring)
    with pytest.raises(NotOurs, match="s3://bucket/lake: this store does not honour conditional writes"):
        client(store).require_conditional_puts("_state")
    assert len(written) == 2
    assert store.objects() == []


def test_the_answer_to_a_first_try_may_be_lost(store: StoreInMemory) -> None:
    """The object is there then, as it was written: that is no reason to refuse the store."""
    faults: list[Fault] = ["repeated"]
    store.fault = lambda call: faults.pop() if faults and call == "put" else None
    client(store).require_conditional_puts("_state")
    assert store.objects() == []


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (FileNotFoundError("none\nof them"), FileNotFoundError, "s3://bucket/lake: none of them"),
        (PermissionError("closed"), OSError, "s3://bucket/lake: closed"),
        (ValueError("no such option"), OSError, "s3://bucket/lake: no such option"),
        (PermissionDeniedError("denied"), OSError, "s3://bucket/lake: denied"),
        (GenericError("gone"), StoreUnavailable, "s3://bucket/lake: gone"),
        (GenericError("status code: 403 Forbidden"), OSError, "s3://bucket/lake: status code: 403 Forbidden"),
    ],
)
def test_errors_of_a_store_are_a_line_with_its_place(
    store: StoreInMemory, error: Exception, kind: type[OSError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    place = client(store)
    monkeypatch.setattr(obstore, "open_reader", fails)
    with pytest.raises(kind) as raised:
        place.open("name")
    assert type(raised.value) is kind
    assert str(raised.value) == said


def test_a_place_that_may_not_be_looked_at_has_nothing_as_far_as_is_known(
    store: StoreInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    store.put("lake/log/1", b"1")
    assert client(store).has("log/*")
    for call in ("head", "list"):
        monkeypatch.setattr(obstore, call, fails)
    place, error = client(store), GenericError("status code: 403 Forbidden")
    assert not place.has("log/*")
    assert not place.has("log/1")
    error = GenericError("timed out")
    with pytest.raises(StoreUnavailable):
        place.has("log/*")


def test_who_has_created_an_object_is_told_so_and_nobody_else(store: StoreInMemory) -> None:
    one, other = client(store), client(store)
    assert one.create("name", b"1") is True
    assert [each.create("name", b"2") for each in (one, other)] == [False, False]
    assert other.read("name") == b"1"
    other.remove(["name", "none"])
    assert other.create("name", b"2") is True
    assert one.read("name") == b"2"


def test_state_is_the_same_in_a_directory_and_in_a_store(store: StoreInMemory, tmp_path: Path) -> None:
    """Whatever else is in it, before and behind what is looked for."""
    chance = random.Random(1)
    both: list[StateFiles] = [StateDirectory(tmp_path), StateObjects(client(store), "_state")]
    numbered = [f"layout-{number:06d}.json" for number in (1, 2, 10)]
    names = ["attempts/1", "layout", "layout.json", *numbered, "layout_", "layouts/1", "ledger/t", "owner.json", "z"]
    for _ in range(40):
        name, wanted, data = chance.choice(names), chance.choice(names), chance.randbytes(3)
        one, other = (
            (each.create(name, data), each.read(wanted), each.names("layout-"), each.names("owner.")) for each in both
        )
        assert one == other
