"""The member of a streaming query: runs in a thread of the process that Spark's driver has for the source.

As in the daemon, the core plans ranges, commits them when the sink has written them, and leaves in order.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal

from kzconsumer.clock import now
from kzconsumer.consumer import subscribe
from kzconsumer.errors import sole_cause
from kzconsumer.logs.logger import facts
from kzconsumer.sessions import Sessions
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.destination import destination_of
from kzconsumer.sinks.planning import RangePlans
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.zookeeper.lease import Lease
from kzconsumer_spark.source.hand_over import HandOver
from kzconsumer_spark.source.options import WHERE
from kzconsumer_spark.source.prompt_commits import committed_ends
from kzconsumer_spark.source.stream_offset import StreamOffset

_WAIT_SECONDS = 0.5
"""How long Spark waits for a batch at a time. After a query was stopped, its member leaves that much later."""
FIRST_BATCH_SECONDS = 15.0
"""How long it may wait for its first one, which takes joining: after a trigger without a batch an interval follows."""
EMPTY_BATCH_SECONDS = 15.0
"""After so long a run has an empty batch: what it waits for may be another source of the query, which Spark has not yet
asked, and so does not learn what is committed."""


class GroupMember:
    """Joins when it is made; its methods block. It belongs to one query, whose checkpoint ends at `offset`."""

    def __init__(self, settings: Settings, offset: StreamOffset, due_records: int) -> None:
        self._settings = settings
        self._bounded = settings.subscription.stop_at is not None
        self._parent = os.getppid()
        self._interrupted = False
        self._first_until = now() + FIRST_BATCH_SECONDS
        self._exits = ExitStack()
        self._portal = self._exits.enter_context(start_blocking_portal())
        self._lease = self._portal.call(Lease)
        self._hand_over = self._portal.call(HandOver, offset, due_records, self._lease)
        self._stop = self._portal.call(anyio.Event)
        self._ended: Future[None] = self._portal.start_task_soon(self._run)

    def following(self, offset: StreamOffset) -> StreamOffset:
        """The end of the next batch after `offset`, which Spark has committed; `offset` if there is none for a while.

        In a bounded run that means that the run is over. Raises KzConsumerError when the member has ended with it.
        """
        deadline = now() + EMPTY_BATCH_SECONDS
        while True:
            end = self._portal.call(self._hand_over.following, offset, _WAIT_SECONDS)
            if self._ended.done():
                self._ended.result()
                return offset
            if end != offset:
                self._first_until = 0.0
                return end
            if not self._bounded and now() > self._first_until:
                return end
            if self._interrupted or os.getppid() != self._parent:
                raise SystemExit("the query has been stopped, or Spark's driver has ended")
            if self._bounded and now() > deadline:
                return offset.empty()

    def interrupt(self) -> None:
        """Have `following` raise SystemExit. For a signal handler: an exception there could leave a lock held."""
        self._interrupted = True

    def leave(self) -> None:
        """Commit what Spark is known to have committed, and leave the group. A range in hand stays planned."""
        with self._exits:
            if not self._ended.done():
                self._portal.call(self._stop.set)
                self._ended.exception(self._settings.stop.deadline + 1)

    async def _run(self) -> None:
        """Until the run is over, or `leave`. Raises KzConsumerError."""
        facts()["group"] = self._settings.group.id
        destination = destination_of(WHERE, capabilities(self._hand_over))
        assert destination is not None
        sessions = Sessions(self._settings, lease=self._lease, wants="ranges", destination=destination)
        isolation, reset = self._settings.fetch.isolation, self._settings.offsets.reset
        plans = RangePlans(sessions, destination, isolation, refuses_loss=reset == "fail")
        runner = SinkRunner(WHERE, self._hand_over, self._settings.batch, sessions, plans)
        try:
            async with anyio.create_task_group() as tasks, committed_ends(self._take) as self._hand_over.socket:
                await tasks.start(runner.run)
                async with sessions.running():
                    tasks.start_soon(self._join, sessions, runner)
                    tasks.start_soon(self._until_finished, sessions)
                    await self._stop.wait()
                    sessions.stop_fetching()
                    await runner.stop(0)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = sole_cause(group)
            raise error from error.__cause__

    def _take(self, end: dict[str, Any]) -> None:
        with suppress(ValueError):  # of another group
            self._hand_over.take(StreamOffset.of_json(end, self._settings.group.id))

    async def _join(self, sessions: Sessions, runner: SinkRunner) -> None:
        await subscribe(sessions)
        runner.feed([cursor.queue for cursor in sessions.cursors.values()])
        self._first_until = min(self._first_until, now() + self._settings.batch.max_time + _WAIT_SECONDS)

    async def _until_finished(self, sessions: Sessions) -> None:
        await sessions.finished.wait()
        self._stop.set()
