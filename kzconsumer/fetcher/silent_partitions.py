"""Asks for one silent partition after the other, each in a request of its own.

Silent is a partition of which the broker sends nothing though its log goes on (`fetch_rules.EmptyAnswers`). The broker
may hold that answer back for long. So this is a task beside the fetch loop, on a connection of its own, and the other
partitions do not wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import local_start
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import FetchRequest
from kzconsumer.brokers.protocol.versions import FETCH
from kzconsumer.clock import now
from kzconsumer.errors import BrokerError, ConnectionLostError, ProtocolError, UnsupportedVersionError
from kzconsumer.fetcher.decode_and_queue import Arrival, take_back
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.response_handler import ResponseHandler
from kzconsumer.settings.sections import FetchSettings

# Version of Fetch from which on brokers answer at once when they throttle, and are silent for that time (KIP-219).
MUTES = 8
# Seconds between two looks whether a partition may be asked for alone: it has room again, is not paused any more, or
# the rate limit was lifted. Each time is twice as long as the one before.
PAUSE = 0.05
LONGEST_PAUSE = 1.0


def mutes(connection: BrokerConnection) -> bool:
    """Whether the broker answers at once when it throttles."""
    return connection.versions.choose(FETCH) >= MUTES


class SilentPartitions:
    """Of one fetch loop."""

    def __init__(
        self,
        handler: ResponseHandler,
        brokers: Brokers,
        settings: FetchSettings,
        rack: str,
        wake: Callable[[], None],
        purpose: str,
    ) -> None:
        """`wake` is called when the fetch loop has to ask for one again. `purpose`: of the connection."""
        self._handler = handler
        self._brokers = brokers
        self._settings = settings
        self._rack = rack
        self._wake = wake
        self._purpose = purpose
        self.due = math.inf
        """By when the broker should have answered, or accepted a connection."""

    async def run(self) -> None:
        """Runs until cancelled."""
        pause = PAUSE
        while True:
            if not self._handler.silent:
                self._handler.silence.clear()
                await self._handler.silence.wait()
            state = self._handler.silent.popleft()
            if not (state in self._handler.states and state.empty.behind):
                continue
            time = now()
            if (held := self._handler.held_back(time)) > 0 or not state.fetchable(time) or state.position is None:
                self._handler.silent.append(state)
                await anyio.sleep(min(max(held, pause), LONGEST_PAUSE))
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = PAUSE
            try:
                self.due = time  # of a connection; `_ask` sets that of the answers
                await self._ask(state, state.position)
            except (ConnectionLostError, ProtocolError, BrokerError, UnsupportedVersionError) as error:
                self._brokers.lost(self._handler.broker, error)
                if state in self._handler.states:
                    self._handler.send_back([state])
            finally:
                self.due = math.inf
            if not (state in self._handler.states and state.empty.behind):
                self._wake()
            elif state not in self._handler.silent:
                self._handler.silent.append(state)

    async def _ask(self, state: FetchState, position: int) -> None:
        handler = self._handler
        since, wait, timeout = state.empty.since, state.empty.max_wait, self._settings.request_timeout
        asked = {state.topic_partition: handler.wanted(state, position)}
        most, least = handler.throttle.most, 1
        request = FetchRequest(int(wait * 1000), least, most, asked, handler.isolation, self._rack)
        arrived: list[Arrival] = []
        connection = await self._brokers.connection(handler.broker, self._purpose)
        try:
            sent = now()
            self.due = sent + wait
            response = await connection.send(request, timeout=handler.throttle.patience(timeout) + wait)
            self.due = math.inf
            time, parts = now(), response.partitions
            size = sum([len(part.records) for part in parts])
            throttled = handler.count(response, size, sent, time, asked, muted=mutes(connection))
            handler.require(response)
            if state not in handler.states or not state.empty.behind or state.empty.since != since:
                # It was lost or sent back meanwhile: a new claim's log may not be compared yet (`FetchSet.answered`),
                # and the other task may have asked as well.
                return
            if throttled and not parts:
                state.empty.interrupt()
            arrived = handler.take(asked, parts, throttled, time, small=True)
            # Until it is delivered, nobody else asks for the partition (`take`). It may be sought or lost
            # meanwhile: then what has arrived is dropped, and `behind` says whether it still belongs to this task.
            await handler.deliver(arrived)
            if state.empty.behind and now() - sent < wait / 2:
                state.pause(now())  # before a hole brokers may answer at once (`DelayedFetch`: on an older segment)
        except BaseException:
            self._brokers.drop(connection)  # an answer still in flight must not meet the next request
            raise
        finally:
            take_back(arrived)
        if state.empty.asks_where:
            end = state.end
            self.due = now()
            control = await self._brokers.connection(handler.broker, "control")
            local = await local_start(control, state.topic_partition, handler.isolation, timeout)
            # A seek, another end or a lost broker may have come meanwhile: then nothing is proved.
            same = state in handler.states and (state.position, state.end) == (position, end) and state.empty.asks_where
            if same and state.empty.prove_hole(local, self._settings, now()) and end is not None:
                state.empty.reset()
                state.pass_over(position, end)
