"""Which claims of a member lack a fetcher, and what a look does about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.group.owned_partitions import OwnedPartition, OwnedPartitions
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.progress import Progress
from kzconsumer.registry.claim_record import OwnerNode
from kzconsumer.streams.chunk_queue import ChunkQueue

PARTITION = TopicPartition("t", 0)


class Fetchers:
    """Those that have been given partitions."""

    def __init__(self) -> None:
        self.have: list[FetchState] = []

    def __contains__(self, state: FetchState) -> bool:
        return state in self.have

    def start(self, states: Iterable[FetchState]) -> None:
        self.have += states


def owned() -> tuple[OwnedPartitions, OwnedPartition, Fetchers]:
    """One claim, which nothing fetches."""
    fetchers, nothing = Fetchers(), Any
    partitions = OwnedPartitions(nothing, nothing, nothing, fetchers, {}, 1 << 20, ())  # type: ignore[arg-type]
    state = FetchState(Progress(PARTITION, 5), ChunkQueue(1 << 20), 5, 1 << 20)
    claim = OwnedPartition(PARTITION, ConsumerThreadId("g_a", 0), OwnerNode("/owner", 1), state)
    partitions.claims[PARTITION] = claim
    return partitions, claim, fetchers


@pytest.mark.parametrize("why", ["", "failed", "closed", "fetched"])
def test_a_claim_without_fetcher_is_fetched_by_a_repair_unless_it_has_ended(why: str) -> None:
    partitions, claim, fetchers = owned()
    match why:
        case "failed":
            claim.fetch.fail(ValueError("its stream raises it"))
        case "closed":
            claim.progress.close()
        case "fetched":
            fetchers.start([claim.fetch])
    assert partitions.unfetched() == ([] if why else [PARTITION])
    partitions.repair(PARTITION)
    assert (claim.fetch in fetchers) == (why != "closed")
    assert partitions.doubtful == set()


def test_a_claim_that_the_listener_is_about_to_hear_of_needs_no_repair() -> None:
    partitions, claim, fetchers = owned()
    with partitions.unreported([claim]):
        assert partitions.unfetched() == []
        partitions.repair(PARTITION)
        assert fetchers.have == [], "an application is given no record of a partition that it does not know of"
    assert fetchers.have == [claim.fetch]
    assert partitions.unfetched() == []


def test_an_owner_node_without_claim_is_left_to_the_next_sweep() -> None:
    partitions, _, fetchers = owned()
    stray = TopicPartition("t", 1)
    partitions.repair(stray)
    assert (partitions.doubtful, fetchers.have) == ({stray}, [])
