"""An application may block all threads that it shares with other libraries: a member has its own."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
from anyio import to_thread

from kzconsumer.brokers.pool import Brokers
from tests.support.log_broker import log_broker


async def test_a_member_connects_while_the_applications_threads_are_blocked() -> None:
    """As by plain functions of FastAPI, or `anyio.to_thread` in a sink. Each connection reads the keys in a thread."""
    shared, end = to_thread.current_default_thread_limiter(), threading.Event()
    shared.total_tokens = 1
    async with (
        log_broker(lambda partition, offset: b"") as broker,
        Brokers(client_id="test", timeout=10) as brokers,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(to_thread.run_sync, end.wait, 60)
        while shared.available_tokens:
            await anyio.lowlevel.checkpoint()
        try:
            with anyio.fail_after(10):
                assert not (await brokers.connection(broker, "fetch")).closed
        finally:
            end.set()
