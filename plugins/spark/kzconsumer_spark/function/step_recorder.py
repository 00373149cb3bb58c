"""The worker's end of the steps of a batch: what the daemon said of the batch in hand, and asking it to record one.

Owns the batch in hand. The worker's main thread begins it, the one that runs foreachBatch records, the one that reads
the daemon's commands hands over the answers. The daemon answers each time, or ends, and the worker with it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable

from kzconsumer_spark.pipe.messages import RunBatch, StepDone, StepRecorded


class StepNotRecorded(RuntimeError):
    """It is not known beyond this call that the step is done: the batch fails, and whoever writes it does it again."""


class StepRecorder:
    def __init__(self, say: Callable[[StepDone], None]) -> None:
        self._say = say
        self._answers: queue.SimpleQueue[StepRecorded] = queue.SimpleQueue()
        self.batch = RunBatch(number=0, ranges=())

    def __repr__(self) -> str:
        return f"StepRecorder(batch {self.batch.number})"

    def begin(self, batch: RunBatch) -> None:
        self.batch = batch

    def record(self, step: str) -> None:
        """Return when it is known for ever that `step` is done for the batch in hand. Raises StepNotRecorded."""
        self._say(StepDone(number=self.batch.number, step=step))
        answer = self._answers.get()
        if answer.error is not None:
            raise StepNotRecorded(answer.error)

    def answered(self, answer: StepRecorded) -> None:
        self._answers.put(answer)
