"""Which steps of the work on a batch are known to be done: what a sink of several steps need not do again.

Owns the list as this process knows it; the plans of the batch's ranges keep it beyond. Planning makes one for each
batch of a replayable sink, which hands it to whatever does the work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from kzconsumer.errors import KzConsumerError

MOST_STEPS = 32
LONGEST_STEP = 100
"""In characters. With the limit above: 64 plans still fit into one request to ZooKeeper."""


class StepNotRecorded(KzConsumerError):
    """Nobody knows that the step is done: whoever writes the range next does it again."""


class Steps:
    """The steps of one batch. A step done for the batch is done for each of its ranges, which are replayed singly."""

    def __init__(self, done: Iterable[str], record: Callable[[str], Awaitable[bool]]) -> None:
        """`record` keeps a step with every range; False when none of these is ours any more."""
        self._done = tuple(done)
        self._record = record

    def __repr__(self) -> str:
        return f"Steps({', '.join(self._done)})"

    @property
    def done(self) -> tuple[str, ...]:
        """In the order in which they were recorded."""
        return self._done

    async def record(self, step: str) -> None:
        """Have it known, for ever, that this step is done for each range that is still ours.

        Raises StepNotRecorded when none is, ValueError for a name that `check_step` refuses.
        """
        check_step(step, self._done)
        if step not in self._done:
            if not await self._record(step):
                raise StepNotRecorded(f'step "{step}" is not recorded: no partition of the batch is ours any more')
            self._done = (*self._done, step)


def check_step(step: str, done: Iterable[str]) -> None:
    """Raises ValueError for a name that cannot be kept beside those that are done."""
    if not step or not step.isprintable() or len(step) > LONGEST_STEP:
        raise ValueError(f"{step[:LONGEST_STEP]!r} is not the name of a step: 1 to {LONGEST_STEP} printable characters")
    others = set(done) - {step}
    if len(others) >= MOST_STEPS:
        raise ValueError(f'step "{step}": a batch has {MOST_STEPS} steps at most')
