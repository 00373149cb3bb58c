"""Starting and stopping a server from async code without holding up the event loop.

Owns no state. The calling thread starts the process, because its end would be the server's; only waiting is
moved to another.
"""

from __future__ import annotations

import signal

import anyio.to_thread

from kzconsumer.sandbox.server_process import ServerProcess


async def start_server(server: ServerProcess) -> None:
    """Start it on its old port and data, and return when it serves. Raises SandboxError."""
    await anyio.to_thread.run_sync(server.wait_startable, abandon_on_cancel=True)
    server.start()
    await anyio.to_thread.run_sync(server.wait_ready, abandon_on_cancel=True)


async def stop_server(server: ServerProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """Send the signal and return when the process has ended; the last broker of two may take 10 s to end gracefully."""
    server.send_signal(number)
    await anyio.to_thread.run_sync(server.wait_ended, abandon_on_cancel=True)
