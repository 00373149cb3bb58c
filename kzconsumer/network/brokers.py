"""The connections of one member: at most one per broker and purpose, opened when first asked for.

`Brokers` owns them all and is their only closer. Fetchers and the leader finder ask it. It does not reconnect by
itself and knows no back-off: who needs a connection asks again.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from kzconsumer.errors import ConnectionLost, KzConsumerError
from kzconsumer.model import Broker
from kzconsumer.network.broker_connection import BrokerConnection


class _Opening:
    """An attempt that several callers may wait for; `outcome` is set before `done`."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.outcome: BrokerConnection | KzConsumerError | None = None


class Brokers:
    """Enter before use; leaving closes every connection. One purpose's slow answers never hold up another's."""

    def __init__(self, *, client_id: str, timeout: float) -> None:
        """`timeout`: seconds for opening one connection."""
        self._client_id = client_id
        self._timeout = timeout
        self._connections: dict[tuple[int, str], BrokerConnection] = {}
        self._openings: dict[tuple[Broker, str], _Opening] = {}
        self._tasks: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<Brokers {len(self._connections)} connections, {len(self._openings)} opening>"

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        tasks.cancel_scope.cancel()
        try:
            await tasks.__aexit__(None, None, None)  # told of no error, it does not wrap the body's in a group
        finally:
            # Only now: an attempt may succeed while it is being cancelled.
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    async def connection(self, broker: Broker, purpose: str = "control") -> BrokerConnection:
        """The open connection for this purpose, opened if need be; callers at the same time share one attempt.

        A connection to where the broker was before is closed. A caller that is cancelled does not end the attempt.
        Raises ConnectionLost, ProtocolError, BrokerError (see `BrokerConnection.open`).
        """
        if self._tasks is None:
            raise ConnectionLost(f"{broker}: connections are closed")
        present = self._connections.get((broker.id, purpose))
        if present is not None:
            if present.broker == broker and not present.closed:
                return present
            self.drop(present)
        opening = self._openings.get((broker, purpose))
        if opening is None:
            opening = self._openings[broker, purpose] = _Opening()
            self._tasks.start_soon(self._open, broker, purpose, opening)
        await opening.done.wait()
        if isinstance(opening.outcome, BrokerConnection):
            return opening.outcome
        raise opening.outcome or ConnectionLost(f"{broker}: connections are closed")

    async def _open(self, broker: Broker, purpose: str, opening: _Opening) -> None:
        try:
            connection = await BrokerConnection.open(broker, client_id=self._client_id, timeout=self._timeout)
            opening.outcome = connection
            replaced = self._connections.get((broker.id, purpose))
            if replaced is not None:
                replaced.close()
            self._connections[broker.id, purpose] = connection
        except KzConsumerError as error:
            opening.outcome = error
        finally:
            del self._openings[broker, purpose]
            opening.done.set()

    def drop(self, connection: BrokerConnection) -> None:
        """Close a connection and forget it; the next caller gets a new one."""
        connection.close()
        for key, held in self._connections.items():
            if held is connection:
                del self._connections[key]
                return
