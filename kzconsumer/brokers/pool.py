"""The connections of one member: at most one per broker and purpose, opened on request.

It does not reconnect by itself. A broker with which TLS or SASL failed is not tried again for a while, however often it
is asked for: a password tried once a second locks accounts. Nor is an address at which another cluster's broker is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, NamedTuple, Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.cluster_state import WITH_CLUSTER_ID, MetadataRequest
from kzconsumer.brokers.protocol.versions import METADATA
from kzconsumer.brokers.transport import Security
from kzconsumer.clock import now
from kzconsumer.connecting import first_success
from kzconsumer.errors import ConfigError, ConnectionLostError, KzConsumerError, SecurityError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker
from kzconsumer.threads import in_thread

log = get_logger("kzconsumer.network")

PAUSE_AFTER_REFUSAL: Final = 10.0
"""Seconds until a broker with which TLS or SASL failed is tried again."""

PAUSE_AFTER_OTHER: Final = 1.0
"""Seconds until an address is tried again at which a broker of another cluster was found."""

ONE_LOSS: Final = 1.0
"""Seconds within which connections to one broker that end are one loss. A member may have many."""


class _Opening:
    """An attempt that several callers may wait for; `outcome` is set before `done`."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.outcome: BrokerConnection | KzConsumerError | None = None


class _Refusal(NamedTuple):
    until: float
    error: ConnectionLostError


class Brokers:
    """Enter before use; leaving closes every connection. Slow responses for one purpose do not delay another's."""

    def __init__(self, *, client_id: str, timeout: float, security: Callable[[], Security] = Security) -> None:
        """`timeout`: seconds for opening a connection. `security` reads files and is called for each, in a thread."""
        self._client_id = client_id
        self._timeout = timeout
        self._security = security
        self._refusals: dict[Broker, _Refusal] = {}
        self._lost: dict[int, float] = {}  # when that was last logged, by broker id
        self.connections: dict[tuple[int, str], BrokerConnection] = {}
        """By broker id and purpose."""
        self._openings: dict[tuple[Broker, str], _Opening] = {}
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        tasks.cancel_scope.cancel()
        try:
            await tasks.__aexit__(None, None, None)  # without the body's error, which it would wrap in a group
        finally:
            # Only now: an attempt may succeed while it is being cancelled.
            for connection in self.connections.values():
                connection.close()
            self.connections.clear()

    async def connection(self, broker: Broker, purpose: str = "control") -> BrokerConnection:
        """The connection for this purpose, opened if necessary; concurrent callers share one attempt.

        One to a former address of the broker, idle for long, or near the end of its SASL session, is replaced. A
        cancelled caller does not end the attempt. Raises ConnectionLostError, also if a broker of another cluster is
        there, ProtocolError, BrokerError (see `BrokerConnection.open`).
        """
        if self._tasks is None:
            raise ConnectionLostError(f"{broker}: connections are closed")
        present = self.connections.get((broker.id, purpose))
        if present is not None:
            if _serves(present, broker) and not present.closed and not present.worn_out:
                return present
            self.drop(present)
        refusal = self._refusals.get(broker)
        if refusal is not None and now() < refusal.until:
            raise type(refusal.error)(str(refusal.error))
        opening = self._openings.get((broker, purpose))
        if opening is None:
            opening = self._openings[broker, purpose] = _Opening()
            self._tasks.start_soon(self._open, broker, purpose, opening)
        await opening.done.wait()
        if isinstance(opening.outcome, BrokerConnection):
            return opening.outcome
        raise opening.outcome or ConnectionLostError(f"{broker}: connections are closed")

    def present(self, broker: Broker, purpose: str = "control") -> BrokerConnection | None:
        """The connection for this purpose, if one is open."""
        connection = self.connections.get((broker.id, purpose))
        return connection if connection is not None and _serves(connection, broker) and not connection.closed else None

    async def _open(self, broker: Broker, purpose: str, opening: _Opening) -> None:
        try:
            security = await in_thread(self._security)
            connection = await BrokerConnection.open(
                broker, client_id=self._client_id, timeout=self._timeout, security=security
            )
            await self._require_cluster(connection)
            opening.outcome = connection
            for former in [each for each in self._refusals if each.id == broker.id]:
                del self._refusals[former]  # also those of its former address, and of before its cluster was known
            if replaced := self.connections.get((broker.id, purpose)):
                replaced.close()
            self.connections[broker.id, purpose] = connection
        except ConfigError as error:  # files that were valid at the start may be so again
            opening.outcome = self._refused(broker, SecurityError(f"{broker}: {'; '.join(error.faults)}"))
        except SecurityError as error:
            opening.outcome = self._refused(broker, error)
        except KzConsumerError as error:
            opening.outcome = error
        finally:
            del self._openings[broker, purpose]
            opening.done.set()

    async def _require_cluster(self, connection: BrokerConnection) -> None:
        """Raises ConnectionLostError if another cluster's broker is there, and as `BrokerConnection.call`."""
        # A broker that has died is registered until its session ends, and its address may be another machine's by then.
        # A broker of another cluster may have topics of the same names. Its Metadata would lead to that cluster's other
        # brokers, too: their records would be delivered, and offsets committed that mean nothing here.
        broker, expected = connection.broker, connection.broker.cluster
        if not expected or connection.versions.ranges.get(METADATA, (0, 0))[1] < WITH_CLUSTER_ID:
            return
        try:
            found = (await connection.call(MetadataRequest(()), timeout=self._timeout)).cluster_id
            if found is not None and found != expected:
                error = ConnectionLostError(f"{broker}: a broker of cluster {found}, not of {expected}")
                self._refusals[broker] = _Refusal(now() + PAUSE_AFTER_OTHER, error)
                raise error
        except BaseException:
            connection.close()
            raise

    def _refused(self, broker: Broker, error: SecurityError) -> SecurityError:
        before, reason = self._refusals.get(broker), str(error)
        if before is None or str(before.error) != reason:
            log.error("no secure connection", broker=broker.id, reason=reason)
        self._refusals[broker] = _Refusal(now() + PAUSE_AFTER_REFUSAL, error)
        return error

    def lost(self, broker: Broker, error: KzConsumerError, note: str = "") -> None:
        """Log that a connection was lost: once for all that end together, and not if TLS or SASL failed, as that is.

        `note` follows the error.
        """
        if isinstance(error, SecurityError) or now() - self._lost.get(broker.id, -ONE_LOSS) < ONE_LOSS:
            return
        self._lost[broker.id] = now()
        log.warning("broker lost", broker=broker.id, reason=f"{error}{note}")

    def close_others(self, ids: Collection[int]) -> None:
        """Close connections to brokers other than these, which are up: nothing waits for answers of one that hangs.

        The partitions that were read from it get a new leader.
        """
        for (number, _), connection in list(self.connections.items()):
            if number >= 0 and number not in ids:  # the id of an address in `[brokers] bootstrap` is negative
                connection.close("closed: it is not registered any more")

    @property
    def refused(self) -> bool:
        """Whether TLS or SASL failed with a broker, and has not succeeded since."""
        return any(isinstance(refusal.error, SecurityError) for refusal in self._refusals.values())

    def drop(self, connection: BrokerConnection) -> None:
        """Close a connection and forget it; the next caller gets a new one."""
        connection.close()
        for key, held in self.connections.items():
            if held is connection:
                del self.connections[key]
                return


def _serves(connection: BrokerConnection, broker: Broker) -> bool:
    there = connection.broker
    same = (there.id, there.host, there.port) == (broker.id, broker.host, broker.port)
    return same and broker.cluster in ("", there.cluster)  # brokers before 0.10.1 do not say of which cluster they are


A = TypeVar("A")

NEXT_BROKER: Final = 0.5
"""Seconds until the next broker is asked as well, if those before have not answered."""


async def first_answer(
    brokers: Brokers,
    asked: Iterable[Broker],
    ask: Callable[[BrokerConnection], Awaitable[A]],
    failed: Callable[[KzConsumerError], None],
) -> A | None:
    """What `ask` returns of the first broker that answers, over its connection "control"; None if all have failed.

    They are asked in this order. One that fails is followed by the next at once. So a broker that is silent, or behind
    an address that drops packets, delays the answer by half a second, and not by its timeout. `failed` gets each error.
    """

    async def attempt(broker: Broker) -> A | None:
        try:
            return await ask(await brokers.connection(broker, "control"))
        except KzConsumerError as error:
            failed(error)
            return None

    return await first_success(asked, attempt, NEXT_BROKER)
