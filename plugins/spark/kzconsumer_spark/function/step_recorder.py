"""The steps of the current batch in the worker, which the daemon records.

The daemon answers each request. If it ends, the worker ends with it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable

from kzconsumer_spark.pipe.messages import RunBatch, StepDone, StepRecorded


class StepNotRecordedError(RuntimeError):
    """The batch must fail: the step will be done again with its next attempt or replay."""


class StepRecorder:
    def __init__(self, say: Callable[[StepDone], None]) -> None:
        self._say = say
        self._answers: queue.SimpleQueue[StepRecorded] = queue.SimpleQueue()
        self.batch = RunBatch(number=0, ranges=())

    def begin(self, batch: RunBatch) -> None:
        self.batch = batch

    def record(self, step: str) -> None:
        """Return when `step` is stored as done for the current batch. Raises StepNotRecordedError."""
        self._say(StepDone(number=self.batch.number, step=step))
        answer = self._answers.get()
        if answer.error is not None:
            raise StepNotRecordedError(answer.error)

    def answered(self, answer: StepRecorded) -> None:
        self._answers.put(answer)
