"""The steps of the current batch in the worker, and what executors have read of it, which the daemon records.

The daemon answers each request. If it ends, the worker ends with it.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping

from kzconsumer.model import TopicPartition
from kzconsumer.records.contents import Contents
from kzconsumer_spark.pipe.messages import RangesRead, Recorded, RunBatch, StepDone


class StepNotRecordedError(RuntimeError):
    """The batch must fail: its next attempt, or a replay, does it again."""


class StepRecorder:
    def __init__(self, say: Callable[[StepDone | RangesRead], None]) -> None:
        self._say = say
        self._answers: queue.SimpleQueue[Recorded] = queue.SimpleQueue()
        self.batch = RunBatch(number=0, ranges=())

    def begin(self, batch: RunBatch) -> None:
        self.batch = batch

    def record(self, step: str) -> None:
        """Return when `step` is stored as done for the current batch. Raises StepNotRecordedError."""
        self._ask(StepDone(number=self.batch.number, step=step))

    def record_read(self, contents: Mapping[TopicPartition, Contents]) -> None:
        """Return when the plans have what was read of the current batch. Raises StepNotRecordedError."""
        found = tuple(contents.get(part.range.topic_partition) for part in self.batch.ranges)
        self._ask(RangesRead(number=self.batch.number, contents=found))

    def _ask(self, event: StepDone | RangesRead) -> None:
        self._say(event)
        answer = self._answers.get()
        if answer.error is not None:
            raise StepNotRecordedError(answer.error)

    def answered(self, answer: Recorded) -> None:
        self._answers.put(answer)
