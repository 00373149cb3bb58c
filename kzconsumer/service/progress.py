"""Reports the progress of a running member: in the log, and of a bounded run to a callback."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer.lag.totals import Total
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.sessions import Sessions
from kzconsumer.sinks.runner import SinkRunner

log = get_logger("kzconsumer")

# Seconds until the first line.
FIRST = 5.0
# Seconds between two calls of `show`.
SHOW = 0.5


async def log_progress(
    sessions: Sessions, runner: SinkRunner, total: Callable[[], Total], reconfigured: Callable[[], anyio.Event]
) -> None:
    """A line per `[log] progress_interval`: owned partitions, lag, rate; at debug the positions of each partition.

    `reconfigured` gives the event of the next change of settings: a line is logged at once then.
    """
    before: dict[tuple[str, int], int] = {}
    pause = min(sessions.settings.log.progress_interval, FIRST)
    logged = now()
    while True:
        with anyio.move_on_after(pause):
            await reconfigured().wait()
        passed, logged = now() - logged, now()
        positions = sessions.positions()
        done = {(at.topic, at.partition): at.processed for at in positions}
        advanced = sum(until - before[key] for key, until in done.items() if key in before)
        lag = total()
        log.info(
            "progress",
            owned=len(positions),
            behind=lag.lag,
            **({"at_least": lag.at_least, "unknown": lag.unknown} if lag.unknown else {}),
            per_second=round(advanced / passed) if before else None,
            lease=sessions.lease.held,
            batch=runner.status.log_fields() if runner.status else None,
        )
        log.debug("positions", partitions=[msgspec.structs.asdict(at) for at in positions])
        before = done
        pause = sessions.settings.log.progress_interval


async def show_run(sessions: Sessions, show: Callable[[int, int], None]) -> None:
    """Call `show` with offsets processed and to process, of the partitions owned at present."""
    begun: dict[TopicPartition, int] = {}
    while True:
        await anyio.sleep(SHOW)
        if (run := sessions.group_run) is None:
            continue
        done = total = 0
        for at in sessions.positions():
            end = run.end(at.topic_partition, at.incarnation)
            if end is not None:
                first = min(begun.setdefault(at.topic_partition, at.processed), end)
                done += min(at.processed, end) - first
                total += end - first
        show(done, total)
