"""Which broker leads which partition, from any broker that answers; and what leaders say of their logs."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import anyio

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.pool import Brokers, first_answer
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest
from kzconsumer.brokers.protocol.error_codes import NONE, TOPIC_AUTHORIZATION_FAILED, broker_error, error_code
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST_LOCAL,
    EARLIEST_LOCAL_VERSION,
    LATEST,
    NOT_PERMITTED,
    AskedEpoch,
    EpochEnd,
    ListedOffset,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.primitives import Request
from kzconsumer.brokers.protocol.versions import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from kzconsumer.clock import now
from kzconsumer.display import some, span
from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachableError,
    ConnectionLostError,
    KzConsumerError,
    LeaderlessError,
    NotFoundError,
    NotPermittedError,
    ProtocolError,
    SecurityError,
    UnsupportedVersionError,
)
from kzconsumer.lag.partition import Reason, Why
from kzconsumer.model import Broker, TopicPartition

R = TypeVar("R")


class KnownBrokers(Protocol):
    """The brokers of the cluster."""

    async def brokers(self) -> Sequence[Broker]:
        """Raises ConnectionLostError, ZooKeeperError if they cannot be looked up."""
        ...

    @property
    def unusable(self) -> Mapping[int, str]:
        """Brokers that cannot be used, by id, with the reason."""
        ...


class Leaders:
    """`timeout` is for each broker's response, in seconds."""

    def __init__(self, known: KnownBrokers, brokers: Brokers, timeout: float) -> None:
        self._known = known
        self._brokers = brokers
        self._timeout = timeout
        self.unreachable_since: float | None = None
        """Since when no broker has answered; None after an answer."""
        self.last: Mapping[TopicPartition, Broker | str] = {}
        """The last result of `of`."""
        self.brokers: Mapping[int, Broker] = {}
        """All that are up, by id, as of the last `of`."""
        self.epochs: dict[TopicPartition, int] = {}
        """In which epoch its leader leads each partition that `of` was asked about; -1 if brokers do not say."""

    def forget_outage(self) -> None:
        """Nothing is looked up any more, so it is not known whether a broker would answer."""
        self.unreachable_since = None

    async def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Broker | str]:
        """The leader of each, or why there is none.

        Raises BrokersUnreachableError if no broker answers, ConnectionLostError, ZooKeeperError if they cannot be
        looked up.
        """
        metadata = await self.ask(MetadataRequest(tuple(sorted({partition.topic for partition in partitions}))))
        self.brokers = metadata.brokers
        leaders: dict[TopicPartition, Broker | str] = {}
        for partition in partitions:
            topic = metadata.topics.get(partition.topic)
            about = topic.partitions.get(partition.partition) if topic else None
            error = (topic.error if topic else 0) or (about.error if about else 0)
            leader = metadata.brokers.get(about.leader) if about else None
            leaders[partition] = leader or (error_code(error).name if error else "not in the metadata")
            self.epochs[partition] = about.leader_epoch if about else -1
        self.last = leaders
        return leaders

    async def grouped(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[Broker, list[TopicPartition]], dict[TopicPartition, str]]:
        """The partitions by their leader, and why the others have none. Raises as `of`."""
        led: dict[Broker, list[TopicPartition]] = {}
        leaderless: dict[TopicPartition, str] = {}
        for partition, leader in (await self.of(partitions)).items():
            if isinstance(leader, Broker):
                led.setdefault(leader, []).append(partition)
            else:
                leaderless[partition] = leader
        return led, leaderless

    async def ask(self, request: Request[R]) -> R:
        """The first answer, asking the brokers in random order (`pool.first_answer`). Raises as `of`."""
        brokers = await self._known.brokers()
        reasons = [f"broker {number}: {reason}" for number, reason in self._known.unusable.items()]

        async def ask(connection: BrokerConnection) -> R:
            return await connection.call(request, timeout=self._timeout)

        in_turn = random.sample(brokers, len(brokers))
        answer = await first_answer(self._brokers, in_turn, ask, lambda error: reasons.append(str(error)))
        if answer is not None:
            self.unreachable_since = None
            return answer
        if self.unreachable_since is None:
            self.unreachable_since = now()
        raise BrokersUnreachableError("; ".join(reasons) or "none is up")


def not_led(partition: TopicPartition, why: str) -> LeaderlessError | BrokerError:
    """`why` as in `Leaders.of`. An ACL hides who leads a topic's partitions: that is no partition without leader."""
    if why == error_code(TOPIC_AUTHORIZATION_FAILED).name:
        return broker_error(TOPIC_AUTHORIZATION_FAILED, str(partition))
    return LeaderlessError(f"{partition} has no leader: {why}")


# A log's beginning and end, the offset at a time, and where a leader epoch ends, from the partition's leader.

LATE: Final = 5.0
"""Seconds after which an answer, or a new connection, is late: another broker may lead the partitions by now. A machine
that has lost its power closes no connection, and `[fetch] request_timeout` is longer than an election takes."""

# Seconds between two requests while a partition has no leader.
PAUSE = 0.1
_NAMES_SHOWN = 20

END_PATIENCE: Final = 12.0
"""Seconds for which a log must seem to end before an offset that was read or planned. A new leader may not know its
log's end until a replica that has stopped fetching no longer counts (replica.lag.time.max.ms); from 2.2 on it does not
answer before (KIP-207). A log that differs by its leader epochs has done so for good."""

_UNKNOWN_END: Final = EpochEnd(NONE, -1, -1)
LOWER_EPOCHS: Final = EpochEnd(NONE, -1, 0)
"""Of a log whose leader epochs are all lower than the one asked for: nothing says where it differs."""

_MOST_OF_TIME: Final = 0.9

A = TypeVar("A", ListedOffset, EpochEnd)


class _SilentError(ConnectionLostError):
    """No answer in the time that the question was given."""


class _OtherAnswerError(ConnectionLostError):
    """A broker has answered, and not what it was asked."""


class _AskOnce(Protocol[A]):
    """`LogOffsets.once` or `epoch_ends`."""

    async def __call__(
        self, partitions: Mapping[TopicPartition, int], /, *, within: float
    ) -> dict[TopicPartition, A | ConnectionLostError | BrokerError]: ...


class LogOffsets:
    """`timeout`, in seconds, is for each response, and for finding a leader.

    With `isolation` READ_COMMITTED a log ends at its last stable offset.
    """

    def __init__(self, leaders: Leaders, brokers: Brokers, timeout: float, isolation: int) -> None:
        self._leaders = leaders
        self._brokers = brokers
        self._timeout = timeout
        self._isolation = isolation

    async def look_up(
        self,
        partitions: Mapping[TopicPartition, int],
        require: Callable[[Collection[TopicPartition]], Awaitable[None]] | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset of each partition at a time in ms, LATEST or EARLIEST (see `ListOffsetsRequest`).

        `require` is called first, and raises for those that do not exist: brokers before 0.11 create a topic that is
        named. Raises ConnectionLostError, which names them, BrokerError or BrokersUnreachableError if some are missing
        after `timeout`, UnsupportedVersionError for a time and a broker before 0.10.1, which looks up segments only.
        """
        return await self._patiently(partitions, self.once, require)

    async def at_time(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int]:
        """The first offset with a record of that time (ms since 1970) or later; the end of the log if there is none.

        `ms` may be LATEST. Raises as `look_up`.
        """
        # The end is read first. A record of that time that is written in between comes after that end, so who begins
        # there gets it, and who ends there does not.
        until = await self.look_up(dict.fromkeys(partitions, LATEST))
        found = await self.look_up(dict.fromkeys(partitions, ms)) if ms != LATEST else until
        return {each: at.offset if (at := found[each]).offset >= 0 else until[each].offset for each in partitions}

    async def look_up_epochs(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        """Where these leader epochs end, as `epoch_ends` says. Raises as `look_up` if some are missing."""
        return await self._patiently(epochs, self.epoch_ends)

    async def _patiently(
        self,
        partitions: Mapping[TopicPartition, int],
        ask: _AskOnce[A],
        require: Callable[[Collection[TopicPartition]], Awaitable[None]] | None = None,
    ) -> dict[TopicPartition, A]:
        found: dict[TopicPartition, A] = {}
        until, patience, longest = now() + self._timeout, LATE, 0.0
        reason: KzConsumerError = ConnectionLostError("no leader was found in time")
        with anyio.move_on_after(self._timeout):
            if require is not None:
                await require(partitions.keys())
            while True:
                missing = {p: timestamp for p, timestamp in partitions.items() if p not in found}
                if not missing:
                    return found
                try:
                    # Not until the end: what some leaders have answered would be lost with what one has not. And not
                    # for long at first, as another broker may lead what a hung one was asked about.
                    within = min(patience, _MOST_OF_TIME * (until - now()))
                    answers = await ask(missing, within=within)
                    patience, longest = patience * 2, max(longest, within)
                    for partition, answer in answers.items():
                        if not isinstance(answer, KzConsumerError):
                            found[partition] = answer
                        # The last attempts have milliseconds: to have been silent for so long is no fault of a broker.
                        elif within == longest or not isinstance(answer, _SilentError):
                            reason = answer
                except (ConnectionLostError, BrokerError) as error:
                    reason = error
                if isinstance(reason, BrokerError) and not reason.retriable:
                    break
                if len(found) < len(partitions):
                    await anyio.sleep(PAUSE)
        if type(reason) in (ConnectionLostError, LeaderlessError, _SilentError, _OtherAnswerError):
            names = [str(partition) for partition in partitions if partition not in found]
            raise ConnectionLostError(f"no leader of {some(names, _NAMES_SHOWN)} has answered: {reason}")
        raise reason

    async def once(
        self, partitions: Mapping[TopicPartition, int], *, within: float = math.inf
    ) -> dict[TopicPartition, ListedOffset | ConnectionLostError | BrokerError]:
        """Each partition's answer, or why there is none; every leader is asked once, all at the same time.

        One without an answer `within` so many seconds gets a ConnectionLostError. Raises BrokersUnreachableError or
        ConnectionLostError if the leaders cannot be found, UnsupportedVersionError.
        """
        return await self._of_leaders(partitions, partial(self._listed, partitions), within)

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, within: float = math.inf
    ) -> dict[TopicPartition, EpochEnd | ConnectionLostError | BrokerError]:
        """Where these leader epochs end in the partitions' logs, asked and answered as in `once`.

        Of a broker before 0.11, of a log without epochs, and without permission to ask, `end_offset` is -1.
        """
        return await self._of_leaders(epochs, partial(self._ends_of, epochs), within)

    async def _of_leaders(
        self,
        partitions: Collection[TopicPartition],
        request: Callable[[Broker, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, A]]],
        within: float,
    ) -> dict[TopicPartition, A | ConnectionLostError | BrokerError]:
        found: dict[TopicPartition, A | ConnectionLostError | BrokerError] = {}
        with anyio.move_on_after(within):
            await self._ask_leaders(partitions, request, found)
        for partition in partitions:
            if partition not in found:
                leader = self._leaders.last.get(partition)
                who = f"{leader}: " if isinstance(leader, Broker) else ""
                found[partition] = _SilentError(f"{who}no answer within {span(within)}")
        return {partition: found[partition] for partition in partitions}

    async def _ask_leaders(
        self,
        partitions: Collection[TopicPartition],
        request: Callable[[Broker, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, A]]],
        found: dict[TopicPartition, A | ConnectionLostError | BrokerError],
    ) -> None:
        by_leader, leaderless = await self._leaders.grouped(partitions)
        for partition, why in leaderless.items():
            found[partition] = not_led(partition, why)
        unsupported: list[UnsupportedVersionError] = []

        async def ask(leader: Broker, asked: Collection[TopicPartition]) -> None:
            try:
                answers = await request(leader, asked)
            except (ConnectionLostError, BrokerError) as error:
                found.update(dict.fromkeys(asked, error))
                return
            except ProtocolError as error:
                found.update(dict.fromkeys(asked, _OtherAnswerError(str(error))))
                return
            except UnsupportedVersionError as error:
                unsupported.append(error)
                return
            for partition in asked:
                if (answer := answers.get(partition)) is None:
                    found[partition] = _left_out(leader, partition)
                else:
                    found[partition] = broker_error(answer.error, f"{leader}: {partition}") if answer.error else answer

        async with anyio.create_task_group() as tasks:
            for leader, led in by_leader.items():
                tasks.start_soon(ask, leader, led)
        if unsupported:
            raise unsupported[0]

    async def _listed(
        self, partitions: Mapping[TopicPartition, int], leader: Broker, led: Collection[TopicPartition]
    ) -> dict[TopicPartition, ListedOffset]:
        asked = {partition: partitions[partition] for partition in led}
        connection = await self._brokers.connection(leader, "control")
        if connection.versions.choose(LIST_OFFSETS) == 0 and any(timestamp >= 0 for timestamp in asked.values()):
            raise UnsupportedVersionError(f"{leader}: brokers before 0.10.1 cannot look up records by time")
        request = ListOffsetsRequest(asked, self._isolation, self._leaders.epochs)
        return await connection.call(request, timeout=self._timeout)

    async def _ends_of(
        self, epochs: Mapping[TopicPartition, int], leader: Broker, led: Collection[TopicPartition]
    ) -> dict[TopicPartition, EpochEnd]:
        connection = await self._brokers.connection(leader, "control")
        if OFFSET_FOR_LEADER_EPOCH not in connection.versions.ranges:
            return dict.fromkeys(led, _UNKNOWN_END)

        async def ends(epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
            asked = {each: AskedEpoch(epoch, self._leaders.epochs.get(each, -1)) for each, epoch in epochs.items()}
            answers = await connection.call(OffsetForLeaderEpochRequest(asked), timeout=self._timeout)
            return {each: _UNKNOWN_END if end.error in NOT_PERMITTED else end for each, end in answers.items()}

        found = await ends({partition: epochs[partition] for partition in led})
        # A log without epochs, or one whose epochs are all lower? The latter has one for its first record.
        without = [each for each, end in found.items() if not end.error and end.end_offset < 0]
        first = await ends(dict.fromkeys(without, 0)) if without else {}
        lower = {each: LOWER_EPOCHS for each, end in first.items() if not end.error and end.end_offset >= 0}
        return {**found, **lower}


def _left_out(broker: Broker, partition: TopicPartition) -> _OtherAnswerError:
    return _OtherAnswerError(f"{broker} left {partition} out of its answer")


async def local_start(
    connection: BrokerConnection, partition: TopicPartition, isolation: int, timeout: float
) -> int | None:
    """Where the part of the log begins that the leader has on its own disks; None if the broker does not know.

    Raises ConnectionLostError, BrokerError.
    """
    if connection.versions.choose(LIST_OFFSETS) < EARLIEST_LOCAL_VERSION:
        return None
    request = ListOffsetsRequest({partition: EARLIEST_LOCAL}, isolation)
    answer = (await connection.call(request, timeout=timeout)).get(partition)
    if answer is None:
        raise _left_out(connection.broker, partition)
    if answer.error:
        raise broker_error(answer.error, str(partition))
    return answer.offset


def why_unknown(error: KzConsumerError, since: float | None = None) -> Why:
    """Why a log's end is unknown, for `kzconsumer.lag`, from what `once` or `require` gave instead of it."""
    reason: Reason = "brokers unreachable"
    if isinstance(error, LeaderlessError):
        reason = "no leader"
    elif isinstance(error, NotFoundError):
        reason = "topic gone"
    elif isinstance(error, NotPermittedError | SecurityError) or (
        isinstance(error, BrokerError) and error.name.endswith("AUTHORIZATION_FAILED")
    ):
        reason = "not permitted"
    elif isinstance(error, BrokerError | ProtocolError | UnsupportedVersionError | _OtherAnswerError):
        reason = "broker error"
    return Why(reason, since, str(error))
