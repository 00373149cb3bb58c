"""Which claims are lost because their topics were created again, and what happens until that is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import anyio
import pytest

from kzconsumer.errors import BrokersUnreachableError, ConnectionLostError, KzConsumerError, SessionExpiredError
from kzconsumer.group.owned_partitions import OwnedPartitions
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.storage import CommittedPosition
from tests.support.simulated.virtual_time import in_virtual_time

Answer = dict[str, int] | KzConsumerError


class Owners:
    """Each answer is that to one question."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.answers = list(answers)

    async def present(self, topics: Iterable[str]) -> dict[str, int]:
        assert set(topics) <= {"t", "u"}
        answer = self.answers.pop(0)
        if isinstance(answer, KzConsumerError):
            raise answer
        return answer


CLOSED, DOWN = ConnectionLostError("closed"), BrokersUnreachableError("none is up")


@pytest.mark.parametrize(
    ("answers", "lost", "reported"),
    [
        ([{"t": 7, "u": 7}], [False, False], []),
        ([{"t": 9, "u": 7}], [True, False], ["lost t-0"]),
        ([{"u": 9}], [False, True], ["lost u-0"]),  # t is deleted: nobody else can read what is in hand of it
        ([CLOSED, DOWN, CLOSED, DOWN, {"t": 9, "u": 7}], [True, False], ["lost t-0"]),
        ([CLOSED, SessionExpiredError("over")], [True, True], []),
    ],
    ids=["the same", "created again", "deleted", "away for a while", "session expired"],
)
def test_which_claims_are_lost(answers: Sequence[Answer], lost: list[bool], reported: list[str]) -> None:
    owners, found = Owners(answers), list[str]()
    claims = [Progress(TopicPartition(name, 0), 0, incarnation=7) for name in ("t", "u")]
    unused = cast(Any, None)
    owned = OwnedPartitions(cast(Any, owners), unused, Committer(unused, found.append), unused, {}, 0, ())

    @in_virtual_time
    async def ask() -> None:
        await owned.lose_recreated(claims)

    ask()
    assert not owners.answers
    assert [each.lost for each in claims] == lost
    assert found == reported, "a rebalance is asked for"


@pytest.mark.parametrize("created_again", [True, False])
def test_a_stop_reports_only_work_whose_records_come_again(created_again: bool) -> None:
    """Those of the former topic are gone."""
    unused = cast(Any, None)
    progress = Progress(TopicPartition("t", 0), 3, incarnation=7)
    committer = Committer(unused, lambda reason: None)
    committer.open(progress, CommittedPosition(unused, unused, 3, 0))
    progress.hand_over(5)
    owned = OwnedPartitions(cast(Any, Owners([{"t": 9}])), unused, committer, unused, {}, 0, ())

    @in_virtual_time
    async def lose() -> None:
        if created_again:
            await owned.lose_recreated([progress])
        else:
            committer.lose(progress, "its owner node was changed or deleted")

    lose()
    assert progress.lost
    assert (committer.lost_work_at > -math.inf) is not created_again


def test_nobody_waits_for_brokers_on_behalf_of_claims_that_are_lost() -> None:
    owners, unused = Owners([DOWN] * 5), cast(Any, None)
    claims = [Progress(TopicPartition(name, 0), 0, incarnation=7) for name in ("t", "u")]
    owned = OwnedPartitions(cast(Any, owners), unused, Committer(unused, lambda reason: None), unused, {}, 0, ())

    @in_virtual_time
    async def ask() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(owned.lose_recreated, claims)
            await anyio.sleep(1.5)
            for each in claims:
                each.close()

    ask()
    assert len(owners.answers) == 3
