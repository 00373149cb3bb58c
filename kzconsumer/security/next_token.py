"""The steps of a SASL exchange, which may block, off the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from threading import Thread

from kzconsumer.security.exchange import Exchange


async def next_token(exchange: Exchange, answer: bytes | None) -> tuple[bytes | None, bool]:
    """The token to send, if any, and whether the exchange goes on after it. The first has no `answer`."""
    # In a thread: Kerberos asks a KDC, a token may come from a command, SCRAM computes for a while. The end of the
    # process does not wait for one whose caller was cancelled.
    step: Future[tuple[bytes | None, bool]] = Future()
    step.set_running_or_notify_cancel()
    Thread(target=_run, args=(step, exchange, answer), name="SASL", daemon=True).start()
    return await asyncio.wrap_future(step)


def _run(step: Future[tuple[bytes | None, bool]], exchange: Exchange, answer: bytes | None) -> None:
    try:
        step.set_result(_next(exchange, answer))
    except Exception as error:
        step.set_exception(error)


def _next(exchange: Exchange, answer: bytes | None) -> tuple[bytes | None, bool]:
    try:
        return (next(exchange) if answer is None else exchange.send(answer)), True
    except StopIteration as end:
        return end.value, False
