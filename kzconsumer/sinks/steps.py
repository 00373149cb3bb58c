"""The steps of a batch that are done, stored in the plans of its ranges, so that a replay does not repeat them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from kzconsumer.errors import KzConsumerError

MOST_STEPS = 32
LONGEST_STEP = 100
"""In characters. With the limit above: 64 plans still fit into one request to ZooKeeper."""


class StepNotRecordedError(KzConsumerError):
    """The step is not stored: the next write of the range repeats it."""


class Steps:
    """A step done for a batch is done for each of its ranges, which are replayed one by one."""

    def __init__(self, done: Iterable[str], record: Callable[[str], Awaitable[bool]]) -> None:
        """`record` stores a step in the plan of every range; False if none of them is owned any more."""
        self._done = tuple(done)
        self._record = record

    def __repr__(self) -> str:
        return f"Steps({', '.join(self._done)})"

    @property
    def done(self) -> tuple[str, ...]:
        """In the order in which they were recorded."""
        return self._done

    async def record(self, step: str) -> None:
        """Store that this step is done for each range that is still owned.

        Raises StepNotRecordedError when none is, ValueError for a name that `check_step` refuses.
        """
        check_step(step, self._done)
        if step not in self._done:
            if not await self._record(step):
                raise StepNotRecordedError(f'step "{step}" is not recorded: the partitions of the batch are lost')
            self._done = (*self._done, step)


def check_step(step: str, done: Iterable[str]) -> None:
    """Raises ValueError for a name that cannot be stored with those that are done."""
    if not step or not step.isprintable() or len(step) > LONGEST_STEP:
        raise ValueError(f"{step[:LONGEST_STEP]!r} is not the name of a step: 1 to {LONGEST_STEP} printable characters")
    others = set(done) - {step}
    if len(others) >= MOST_STEPS:
        raise ValueError(f'step "{step}": a batch has {MOST_STEPS} steps at most')
