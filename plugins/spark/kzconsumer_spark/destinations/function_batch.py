"""The third argument of a function: the ranges with their tokens, `is_replay`, and `once`.

The names of a range are the same in every replay and every member, and do not depend on batch_id.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from kzconsumer.sinks.interface import check_step
from kzconsumer_files.range_names import partition_name
from kzconsumer_spark.worker_protocol.messages import BatchRange


class FunctionRange(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive records of one partition in the DataFrame: all of the log with `first <= offset < until`.

    `records` is the number of offsets that are read; the log may have records at fewer of them, or at none.
    `incarnation` differs after the topic was recreated, `epoch` counts the partition's offset resets. `token` is the
    unique name of the range in all groups: at most 400 printable ASCII characters. `txn_app_id` is the same for all
    ranges of the partition, incarnation and epoch, and `txn_version`, the range's end, grows from each of them to the
    next: made for Delta's `txnAppId` and `txnVersion`.
    """

    topic: str
    partition: int
    first: int
    until: int
    incarnation: int
    epoch: int
    records: int
    token: str
    txn_app_id: str

    @property
    def txn_version(self) -> int:
        return self.until


class FunctionBatch:
    """The third argument of a function: ranges of different partitions, never two of the same one."""

    def __init__(
        self,
        ranges: Iterable[FunctionRange],
        *,
        is_replay: bool,
        done: Sequence[str],
        before_step: Callable[[], None],
        record: Callable[[str], None],
    ) -> None:
        """`before_step` returns when a step may begin, `record` when a step is stored as done."""
        self.ranges = tuple(ranges)
        self.is_replay = is_replay
        """The range, the only one of the batch, was planned, not committed: it may be written, or in part."""
        self._done = list(done)
        self._before_step = before_step
        self._record = record
        self._recording = threading.Lock()
        self._over = False

    def __repr__(self) -> str:
        kind = "replay" if self.is_replay else "batch"
        return f"FunctionBatch({kind} of {', '.join(part.token for part in self.ranges)})"

    @property
    def records(self) -> int:
        """The sum of those of the ranges: the DataFrame has no more records of the log, and may have none."""
        return sum(part.records for part in self.ranges)

    def once(self, step: str, run: Callable[[], object]) -> bool:
        """Call `run` unless `step` is known to be done for these records; whether it was called.

        Once this returns, neither a replay nor another attempt calls it. If the process dies between the end of `run`
        and the record, it is called again: each step is done at least once, and must be idempotent. Errors of `run`
        are raised, and nothing is recorded. Raises ValueError for an invalid name (1 to 100 printable characters, 32
        steps at most), and RuntimeError if the step cannot be recorded, for example because the partitions are lost:
        do not catch it.
        """
        check_step(step, self._done)
        if step in self._done:
            return False
        self._require_open(step)
        self._before_step()
        require_done(run())
        with self._recording:
            self._require_open(step)
            self._record(step)
            self._done.append(step)
        return True

    def close(self) -> None:
        """The function has returned: steps can no longer be recorded."""
        with self._recording:
            self._over = True

    def _require_open(self, step: str) -> None:
        if self._over:
            raise RuntimeError(f'step "{step}" was called after the function had returned')


def function_range(part: BatchRange, scope: str) -> FunctionRange:
    partition = partition_name(part, scope)
    return FunctionRange(
        topic=part.topic,
        partition=part.partition,
        first=part.first,
        until=part.until,
        incarnation=part.incarnation,
        epoch=part.epoch,
        records=part.records,
        token=f"{partition}+{part.first:020d}+{part.until:020d}",
        txn_app_id=partition,
    )


def takes_batch(function: Callable[..., Any]) -> bool:
    """Whether a function takes the batch: its third positional parameter has no default, or is called `batch`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C have no signature
        return False
    third = parameters[2] if len(parameters) > 2 else None
    if third is None or third.kind not in (third.POSITIONAL_ONLY, third.POSITIONAL_OR_KEYWORD):
        return False
    return third.default is third.empty or third.name == "batch"


def require_written(returned: object) -> None:
    """As `require_done`; raises TypeError for False, too, as the core does: the batch would count as written.

    Not for a step: `lambda: statement.execute(...)` is False after an insert.
    """
    require_done(returned)
    if returned is False:
        raise TypeError("the function returned False: it returns None once all is written, and raises otherwise")


def require_done(returned: object) -> None:
    """Raises TypeError for a coroutine or generator, whose work is not done yet."""
    if inspect.iscoroutine(returned):
        returned.close()  # avoids the warning that it was never awaited
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise TypeError(f"the function returned a {type(returned).__name__}: it must do its work before it returns")
