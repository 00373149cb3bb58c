"""The faults of an interop run follow from its seed, and leave what the group needs."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from random import Random

import pytest

from tests.interop.evidence import Kind
from tests.interop.schedule import OF_BROKERS, OF_MEMBERS, OF_ZOOKEEPER, Fault, What, faults, members

KINDS = (Kind.ORIGINAL, Kind.KAFKA_NODE, Kind.OURS)


def drawn(seed: int) -> tuple[dict[str, Kind], list[Fault]]:
    chance = Random(seed)
    group = members(chance, 5, KINDS)
    return group, faults(chance, 180.0, list(group), (1, 2))


def test_a_seed_is_repeated() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


@pytest.mark.parametrize("seed", range(50))
def test_a_group_and_its_faults(seed: int) -> None:
    group, planned = drawn(seed)
    kinds = Counter(group.values())
    assert len(group) == 5
    assert kinds[Kind.OURS] >= 2
    assert set(kinds) == set(KINDS)
    assert 10 <= len(planned) <= 40
    for one, other in combinations(planned, 2):
        if one.at <= other.at < one.at + one.lasts:  # at the same time
            for kind in (OF_ZOOKEEPER, OF_BROKERS):
                assert not (one.what in kind and other.what in kind)
            assert one.what not in OF_MEMBERS or one.target != other.target


def test_every_fault_is_drawn() -> None:
    assert {fault.what for seed in range(20) for fault in drawn(seed)[1]} == set(What)
