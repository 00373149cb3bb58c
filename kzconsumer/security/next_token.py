"""The steps of a SASL exchange, which may block, off the event loop."""

from __future__ import annotations

from anyio import to_thread

from kzconsumer.security.exchange import Exchange


async def next_token(exchange: Exchange, answer: bytes | None) -> tuple[bytes | None, bool]:
    """The token to send, if any, and whether the exchange goes on after it. The first has no `answer`."""
    # In a thread: Kerberos asks a KDC, a token may come from a command, SCRAM computes for a while.
    return await to_thread.run_sync(_next, exchange, answer, abandon_on_cancel=True)


def _next(exchange: Exchange, answer: bytes | None) -> tuple[bytes | None, bool]:
    try:
        return (next(exchange) if answer is None else exchange.send(answer)), True
    except StopIteration as end:
        return end.value, False
