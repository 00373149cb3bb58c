"""The store in memory answers as real ones do: the same calls to both, through the product's own client."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kzconsumer_files.object_store import ObjectStore as Place
from tests.support.extent import extent, only_nightly
from tests.support.object_store import ObjectStore, Scheme
from tests.support.store_in_memory import StoreInMemory

CALLS = extent(60, 600)
NAMES = ("a", "a/b", "a/b+c", "a/b/c", "ab", "day=a%2Fb é/x", "_k/00000000000000000003+00000000000000000009.json")


class Asked:
    """Makes calls, and writes down what a place answers."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place = place
        self._file = folder / "file"
        self.answers: list[object] = []

    def ask(self, chance: random.Random) -> None:
        name, other = chance.choice(NAMES), chance.choice(NAMES)
        data = b"%d" % chance.randrange(100) * chance.randrange(3)
        self._file.write_bytes(data)
        place = self._place
        calls: list[Callable[[], object]] = [
            lambda: place.create(name, data),
            lambda: place.create(other, data),
            lambda: place.upload(self._file, name),
            lambda: place.copy(name, other),
            lambda: place.read(name),
            lambda: place.exists(name),
            lambda: place.remove([name, other]),
            lambda: list(place.listed()),
            lambda: list(place.listed("a")),
            lambda: list(place.listed("a", after="a/b")),
            lambda: [sorted(each) for each in place.tops()],
            lambda: [sorted(each) for each in place.tops("a")],
            lambda: self.opened(name),
        ]
        try:
            self.answers.append(chance.choice(calls)())
        except OSError as error:
            self.answers.append(type(error))

    def opened(self, name: str) -> bytes:
        with closing(self._place.open(name)) as file:
            file.seek(1)
            return file.read()


@pytest.mark.parametrize("scheme", ["s3", *(pytest.param(each, marks=only_nightly) for each in ("gs", "abfss"))])
def test_both_answer_alike(
    scheme: Scheme, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreInMemory(scheme).reached() as store:
        memory = Asked(Place(store.uri("lake"), {}), tmp_path)
        for seed in range(CALLS):
            memory.ask(random.Random(seed))
    with ExitStack() as exits:
        server: ObjectStore = (
            request.getfixturevalue("amazon")
            if scheme == "s3"
            else exits.enter_context(ObjectStore.running(tmp_path / "store", scheme=scheme))
        )
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        real = Asked(Place(server.uri("lake"), server.options), tmp_path)
        for seed in range(CALLS):
            real.ask(random.Random(seed))
            assert real.answers[-1] == memory.answers[seed], f"call {seed}"
    assert len({type(each) for each in memory.answers}) > 4, "few kinds of answers are compared"
