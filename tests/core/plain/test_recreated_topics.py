"""Which claims are lost because their topics were created again, and what happens until that is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import anyio
import pytest

from kzconsumer.errors import BrokersUnreachableError, ConnectionLostError, KzConsumerError, SessionExpiredError
from kzconsumer.group.owned_partitions import OwnedPartitions
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from tests.support.simulated.virtual_time import in_virtual_time

Answer = dict[str, int] | KzConsumerError


class Owners:
    """Each answer is that to one question."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.answers = list(answers)

    async def present(self, topics: Iterable[str]) -> dict[str, int]:
        assert set(topics) == {"t", "u"}
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
