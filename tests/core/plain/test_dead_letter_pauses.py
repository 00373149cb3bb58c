"""Pauses between attempts to write a dead letter, on the virtual clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.errors import DeadLetterError
from kzconsumer.rejected import RejectedRecords
from tests.core.plain.test_rejects import configured, rejected_record
from tests.support.simulated.virtual_time import BEGINNING, World, clock_of


def test_pauses_double_up_to_half_a_minute() -> None:
    world, attempts = World(0), list[float]()

    class Full:
        async def write(self, letters: Sequence[DeadLetter]) -> None:
            attempts.append(world.now - BEGINNING)
            raise DeadLetterError("the box is full")

        def close(self) -> None: ...

    rejects = RejectedRecords(configured({"policy": "dead-letter", "directory": "letters"}), Full(), Counter())
    with clock_of(world):
        process = world.process("member")
        waiting = process.create_task(rejects.handle([rejected_record(5)], lambda: world.now - BEGINNING > 100))
        world.pass_time(20.0)
        assert rejects.waiting == 1
        world.pass_time(100.0)
        assert rejects.waiting == 0
        assert waiting.done()
        assert not waiting.result(), "the partition is lost by then"
        world.end(process)
    assert attempts == pytest.approx([0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5, 91.5])
