"""Writers, late writers and those that set ranges aside, in an object store: in any order, killed at any call.

What a store may do to a request happens to them: it fails, its answer is lost, it arrives late, a copy of Azure's is
pending. `test_ledger_machine` is the same in a directory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from kzconsumer.errors import DestinationWentBackError
from kzconsumer_files.holdings import files
from kzconsumer_files.object_store import ObjectStore, StoreUnavailable
from kzconsumer_files.object_target import ObjectTarget
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.extent import seeds
from tests.support.object_store import Scheme
from tests.support.publication_world import (
    BEFORE,
    EPOCH,
    World,
    in_turn,
    planned,
    ranges_of,
    require_refused,
    scheduled,
    stray_of,
)
from tests.support.stepped_files import Stepped
from tests.support.store_in_memory import Fault, StoreInMemory

pytestmark = pytest.mark.timeout(300)
FAULTS: tuple[Fault, ...] = ("repeated", "unanswered", "refused", "late")


class ShuffledCalls:
    """In the place of a pool of threads: one call after the other, in an order of its own."""

    chance: random.Random

    def __init__(self, threads: int) -> None:
        pass

    def __enter__(self) -> ShuffledCalls:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def map(self, call: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """All calls are made, also after one that failed; the first failure is raised where its result would be."""
        numbered = list(enumerate(items))
        results: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        for number, item in self.chance.sample(numbered, len(numbered)):
            try:
                results[number] = call(item)
            except Exception as error:
                errors[number] = error
        for number, _ in numbered:
            if number in errors:
                raise errors[number]
            yield results[number]


@pytest.fixture
def chance(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> random.Random:
    made = random.Random(seed)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ShuffledCalls, "chance", made, raising=False)
    monkeypatch.setattr("kzconsumer_files.object_target.ThreadPoolExecutor", ShuffledCalls)
    monkeypatch.setattr("kzconsumer_files.object_target._COPY_POLL", 0)
    return made


@pytest.mark.parametrize("seed", seeds(60, 3000))
def test_publication_to_a_store_is_exactly_once_in_any_order(chance: random.Random, seed: int) -> None:
    scheme: Scheme = chance.choice(("s3", "abfss"))
    with StoreInMemory(scheme).reached() as store:
        world = World(lambda: ObjectTarget(ObjectStore(store.uri("lake"), {})), files=2)
        store.folders = {f"lake/_kzconsumer/{each}" for each in ("ledger", "publishing") if chance.random() < 0.2}
        old = chance.randint(3, 9)
        parts = ranges_of(chance, old + 4)
        for part in parts[:old]:
            world.write(part, "before")
        contested = chance.choice(parts[old - 1 : old + 2])

        def any_part() -> BatchRange:
            return contested if chance.random() < 0.6 else chance.choice(parts[max(0, old - 6) : old + 2])

        store.delay = lambda: chance.choice((0, 1, 3, 20))
        faults = chance.choice((0.0, 0.02, 0.1))
        store.fault = lambda call: chance.choice(FAULTS) if chance.random() < faults else None

        def persistent(attempt: Callable[[], object]) -> None:
            """As a member, which tries again for as long as the store does not answer."""
            while True:
                with suppress(StoreUnavailable):
                    attempt()
                    return

        def owner() -> None:
            for before, part in pairwise(parts[old - 1 :]):
                persistent(lambda: world.write(part, "owner", follows=before))  # noqa: B023

        def late() -> None:
            part, first = any_part(), chance.random() < 0.3
            persistent(lambda: world.write(part, "late", look_first=first))

        def keeper() -> None:
            part = any_part()
            persistent(lambda: world.set_aside(part))

        def asker() -> None:
            for _ in range(2):
                persistent(world.ask)

        def stray() -> None:
            """Its offsets were set back, or its claim record is of before a reset."""
            over = stray_of(chance, parts[:old], chance.choice((BEFORE, EPOCH)))
            persistent(lambda: require_refused(world, over))

        programs: dict[str, Callable[[], None]] = {"owner": owner, "other": owner, "late": late, "later": late}
        programs |= {"keeper": keeper, "asker": asker, "stray": stray}
        stepped = Stepped()
        store.before = lambda call: actor.wait(call) if (actor := stepped.here()) is not None else None
        actors = stepped.run(programs, scheduled(chance, programs))
        store.fault = lambda call: None
        store.settle()
        world.target.finish()
        world.require_right(parts)
        held = files(world.open(), "text", True)
        assert [each for each in held.ranges if each.faults] == []
        assert held.strays == ()
        left = [name for name in store.objects() if "/attempts/" in name]
        place = f"{store.uri('lake')}/_kzconsumer/attempts"
        them = f"{len(left)} staged objects ({store.size(left)} bytes)"
        said = f"{them} in {place} are of running writes, or of killed members"
        assert [each for each in held.leftovers if "staged" in each] == ([said] if left else [])
        assert left == [] or faults or any(actor.killed for actor in actors)
        lost = planned(parts[-1].until, parts[-1].until + 1)
        with pytest.raises(DestinationWentBackError):
            world.write(planned(lost.until, lost.until + 1), "owner of a store that was restored", follows=lost)
        world.require_right(parts)


@pytest.mark.parametrize("seed", [0])
def test_two_processes_are_suspended_at_each_of_their_calls(chance: random.Random, seed: int) -> None:
    """A late writer, and one that carries out decisions of others. Meanwhile the owner publishes the range, or another
    member sets it aside. The decision of the late writer is there for a moment, and void.
    """
    whole = 1 << 30
    for late, asker, more, owner in product(range(16), range(1, 4), (1, 2), ("owner", "keeper")):
        with StoreInMemory().reached() as store:
            world = World(lambda: ObjectTarget(ObjectStore(store.uri("lake"), {})))
            part = planned(0, 3)
            programs: dict[str, Callable[[], object]] = {
                "late": lambda: world.write(part, "late", look_first=False),  # noqa: B023
                "asker": lambda: world.open().missing([part]),  # noqa: B023
                "owner": lambda: world.write(part, "owner"),  # noqa: B023
                "keeper": lambda: world.set_aside(part),  # noqa: B023
            }
            del programs["keeper" if owner == "owner" else "owner"]
            turns = [
                ("late", late),
                ("asker", asker),
                (owner, whole),
                ("late", more),
                ("asker", whole),
                ("late", whole),
            ]
            stepped = Stepped()
            store.before = lambda call: actor.wait(call) if (actor := stepped.here()) is not None else None  # noqa: B023
            stepped.run(programs, in_turn(turns))
            world.require_right([part])
