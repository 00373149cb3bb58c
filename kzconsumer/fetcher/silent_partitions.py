"""Asks for one silent partition after the other, each in a request of its own.

Silent is a partition of which the broker sends nothing though its log goes on (`reading.EmptyAnswers`). The broker may
hold that answer back for long. So this is a task beside the fetch loop, on a connection of its own, and the other
partitions do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import local_start
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import FetchRequest
from kzconsumer.brokers.protocol.versions import FETCH
from kzconsumer.clock import now
from kzconsumer.errors import BrokerError, ConnectionLostError, ProtocolError, SecurityError, UnsupportedVersionError
from kzconsumer.fetcher.delivery import Arrival, take_back
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.intake import Intake
from kzconsumer.logs.logger import get_logger
from kzconsumer.settings.sections import FetchSettings

log = get_logger("kzconsumer.fetcher")

# Version of Fetch from which on brokers answer at once when they throttle, and are silent for that time (KIP-219).
MUTES = 8
# Seconds between two looks whether a partition that is asked for alone has room again.
PAUSE = 0.05


def mutes(connection: BrokerConnection) -> bool:
    """Whether the broker answers at once when it throttles."""
    return connection.versions.choose(FETCH) >= MUTES


class SilentPartitions:
    """Of one fetch loop."""

    def __init__(
        self,
        intake: Intake,
        brokers: Brokers,
        settings: FetchSettings,
        rack: str,
        wake: Callable[[], None],
        purpose: str,
    ) -> None:
        """`wake` is called when the fetch loop has to ask for one again. `purpose`: of the connection."""
        self._intake = intake
        self._brokers = brokers
        self._settings = settings
        self._rack = rack
        self._wake = wake
        self._purpose = purpose

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if not self._intake.silent:
                self._intake.silence.clear()
                await self._intake.silence.wait()
            state = self._intake.silent.popleft()
            if not (state in self._intake.states and state.empty.behind):
                continue
            time = now()
            if (held := self._intake.held_back(time)) > 0 or not state.fetchable(time) or state.position is None:
                self._intake.silent.append(state)
                await anyio.sleep(max(held, PAUSE))
                continue
            try:
                await self._ask(state, state.position)
            except (ConnectionLostError, ProtocolError, BrokerError, UnsupportedVersionError) as error:
                if not isinstance(error, SecurityError):  # the pool logs those, once
                    log.warning("broker lost", broker=self._intake.broker.id, reason=str(error))
                if state in self._intake.states:
                    self._intake.send_back([state])
            if not (state in self._intake.states and state.empty.behind):
                self._wake()
            elif state not in self._intake.silent:
                self._intake.silent.append(state)

    async def _ask(self, state: FetchState, position: int) -> None:
        intake = self._intake
        since, wait, timeout = state.empty.since, state.empty.max_wait, self._settings.request_timeout
        asked = {state.topic_partition: intake.wanted(state, position)}
        most, least = intake.throttle.most, 1
        request = FetchRequest(int(wait * 1000), least, most, asked, intake.isolation, self._rack)
        arrived: list[Arrival] = []
        connection = await self._brokers.connection(intake.broker, self._purpose)
        try:
            sent = now()
            response = await connection.send(request, timeout=intake.throttle.patience(timeout) + wait)
            throttled = intake.count(response, sent, asked, muted=mutes(connection))
            intake.require(response)
            parts = response.partitions
            if not state.empty.behind or state.empty.since != since:
                return  # it was sent back meanwhile: the other task may have asked as well
            if throttled and not parts:
                state.empty.interrupt()
            arrived = intake.take(asked, parts, throttled, alone=True)
            await intake.deliver(arrived)
            if state.empty.behind and now() - sent < wait / 2:
                state.pause(now())  # before a hole brokers may answer at once (`DelayedFetch`: on an older segment)
        except BaseException:
            self._brokers.drop(connection)  # an answer still in flight must not meet the next request
            raise
        finally:
            take_back(arrived)
        if state.empty.asks_where and (end := state.end) is not None:
            control = await self._brokers.connection(intake.broker, "control")
            local = await local_start(control, state.topic_partition, intake.isolation, timeout)
            # A seek, another end or a lost broker may have come meanwhile: then nothing is proved.
            same = state in intake.states and (state.position, state.end) == (position, end) and state.empty.asks_where
            if same and state.empty.prove_hole(local, self._settings, now()):
                state.empty.reset()
                state.pass_over(position, end)
