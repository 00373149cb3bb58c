"""A job for cron or Airflow.

Shows: a named run, which consumes up to the end of the log as it was at the first start.

    eval "$(kzconsumer sandbox env)"      # or: export KZCONSUMER__ZOOKEEPER__CONNECT=zk1:2181/kafka
    python scheduled_job.py 2026-01-31    # the name of the run; again with the same name: nothing is left to do

Exit status: 0 if the run is finished, by this process or by others; 75 if it is to be started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import kzconsumer


async def consume(settings: kzconsumer.Settings) -> str | None:
    """Read to the end of the group's run. Returns its name, or None if it is not finished."""
    orders = cents = 0
    async with kzconsumer.connect(settings) as consumer:
        loop = asyncio.get_running_loop()
        leaving = set[asyncio.Task[None]]()
        loop.add_signal_handler(signal.SIGTERM, lambda: leaving.add(loop.create_task(consumer.leave())))
        (stream,) = (await consumer.create_message_streams({"orders": 1}))["orders"]
        async for message in stream:
            orders += 1
            cents += json.loads(message.value or b"")["cents"]
    # Here everything that was processed is committed.
    if leaving or consumer.run is None or not consumer.finished.is_set():
        return None
    print(f"run {consumer.run.id}: {orders} orders, {cents} cents")
    return consumer.run.id


async def main(run: str) -> int:
    settings = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": os.environ["KZCONSUMER__ZOOKEEPER__CONNECT"]},
            "group": {"id": "example-job"},
            "subscription": {"stop_at": "end", "run": run},
        }
    )
    # An earlier run that is not finished comes first.
    while (finished := await consume(settings)) not in (run, None):
        pass
    return 75 if finished is None else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scheduled_job.py RUN")
    sys.exit(asyncio.run(main(sys.argv[1])))
