"""Why a server closes a plain connection without answering the handshake: what it says to `srvr`, its status command.

Called by session_life, for a session that no server has let in yet. A server without quorum answers `srvr` and nothing
else; a port that wants TLS answers no plain text.
"""

from __future__ import annotations

import asyncio
import contextlib

import anyio

LIMIT = 0.5
"""Seconds for connecting and the answer."""

_SRVR = b"srvr\n"  # with the line's end: a port with TLS hangs up on the fifth byte, on four it waits for more


async def explain(host: str, port: int) -> str:
    """The rest of a sentence that says that the server closed the connection."""
    said = b""
    with contextlib.suppress(OSError), anyio.move_on_after(LIMIT):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(_SRVR)
            said = await reader.read(200)
        finally:
            writer.transport.abort()
    if b"not currently serving" in said:
        return "it has no quorum, so it serves nobody"
    if said.startswith(b"Zookeeper version"):
        return "it serves others: is it behind, or starting?"
    if said.startswith(b"srvr"):  # is not executed because it is not in the whitelist
        return "has it a quorum?"
    return (
        "has it a quorum, and room for more connections (maxClientCnxns), "
        "or does this port want TLS? ([zookeeper] secure, connect)"
    )
