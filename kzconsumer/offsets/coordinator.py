"""A group's offsets with the brokers: stored by the group's coordinator, and read from it.

There is no fence here: ZooKeeper decides who may write.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

import anyio
import msgspec

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import KnownBrokers
from kzconsumer.brokers.pool import Brokers, first_answer
from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.error_codes import broker_error
from kzconsumer.brokers.protocol.groups import (
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupState,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kzconsumer.brokers.protocol.versions import CONSUMER_GROUP_DESCRIBE, OFFSET_COMMIT, OFFSET_FETCH
from kzconsumer.errors import (
    BrokerError,
    ConnectionLostError,
    CoordinatorError,
    KzConsumerError,
    ProtocolError,
    UnsupportedVersionError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.start_rules import WithBrokers

log = get_logger("kzconsumer.offsets")

T = TypeVar("T")

COMMIT_PATIENCE: Final = 2.0
"""Seconds for which a commit looks for a coordinator that moved; a release, and so the next owner, waits for it."""

READ_PATIENCE: Final = 10.0
"""Seconds for a read, which a claim cannot do without: enough for brokers to notice that one of them died."""

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts, doubling. The original's `offsets.channel.backoff.ms` is 1000."""

ALL_FROM: Final = 2
"""The version of OffsetFetch that can ask for all partitions."""

_MOVED: Final = {error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.NOT_COORDINATOR}
_WAIT: Final = {error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.REQUEST_TIMED_OUT}
# The oldest brokers use the second for "no offset".
_ANSWERED: Final = {error_codes.NONE, error_codes.UNKNOWN_TOPIC_OR_PARTITION}
# The last two: there is no such group, or the newer protocol of groups is disabled.
_DESCRIBED: Final = {error_codes.NONE, error_codes.GROUP_ID_NOT_FOUND, error_codes.UNSUPPORTED_VERSION}
_OTHER_PROTOCOL: Final = {error_codes.ILLEGAL_GENERATION, error_codes.UNKNOWN_MEMBER_ID}


class GroupCoordinator:
    """The offsets of one group; `timeout`, in seconds, is for each response.

    As by `kafka.consumer.ZookeeperConsumerConnector` (1.1.1) with `offsets.storage=kafka`: as a consumer outside of a
    broker-coordinated group, with the brokers' retention.
    """

    def __init__(self, group: str, known: KnownBrokers, brokers: Brokers, timeout: float) -> None:
        self._group = group
        self._known = known
        self._brokers = brokers
        self._timeout = timeout
        self._coordinator: Broker | None = None
        self._logged: Broker | None = None

    async def store(self, offsets: Mapping[TopicPartition, WithBrokers]) -> dict[TopicPartition, str]:
        """Store them, forwards or back; returns those that were refused, with the reason.

        Raises CoordinatorError if no coordinator has accepted them within COMMIT_PATIENCE: it is unknown then whether
        they are stored. Raises SessionExpiredError.
        """
        refused: dict[TopicPartition, str] = {}
        left = dict(offsets)

        async def attempt(connection: BrokerConnection) -> KzConsumerError | None:
            request = OffsetCommitRequest(
                self._group,
                {partition: each.offset for partition, each in left.items()},
                {partition: each.metadata for partition, each in left.items()},
                {partition: each.leader_epoch for partition, each in left.items()},
            )
            answers = await connection.call(request, timeout=self._timeout)
            again: KzConsumerError | None = None
            for partition in list(left):
                error = answers.get(partition, error_codes.UNKNOWN_SERVER_ERROR)
                if error in _MOVED | _WAIT:
                    again = self._to_repeat(connection, error)
                    continue
                del left[partition]
                if error != error_codes.NONE:
                    refused[partition] = str(broker_error(error, self._about(error)))
            return again

        if left:
            await self._ask(attempt, COMMIT_PATIENCE, stores=OFFSET_COMMIT)
        return refused

    async def stored(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, WithBrokers]:
        """The offsets of those that have one. Raises CoordinatorError, SessionExpiredError."""
        found: dict[TopicPartition, WithBrokers] = {}
        for partition, answer in (await self._answers(partitions, others=False)).items():
            if isinstance(answer, BrokerError):
                raise CoordinatorError(str(answer))
            found[partition] = answer
        return found

    async def seen(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, WithBrokers | BrokerError]:
        """All offsets of the group (of brokers before 0.10.2 only of `partitions`), and why one cannot be read.

        Raises CoordinatorError, SessionExpiredError.
        """
        return await self._answers(partitions, others=True)

    async def _answers(
        self, partitions: Collection[TopicPartition], *, others: bool
    ) -> dict[TopicPartition, WithBrokers | BrokerError]:
        found: dict[TopicPartition, WithBrokers | BrokerError] = {}

        async def attempt(connection: BrokerConnection) -> KzConsumerError | None:
            found.clear()
            if others and connection.versions.choose(OFFSET_FETCH) >= ALL_FROM:
                reason = await self._fetch(connection, partitions, found, every=True)
                if reason is not None:
                    return reason
            # Among all offsets a broker leaves out those of topics that this user may not describe, as if there were
            # none. Asked for them by name, it returns the error.
            rest = [partition for partition in partitions if partition not in found]
            return await self._fetch(connection, rest, found, every=False) if rest else None

        if partitions or others:
            await self._ask(attempt, READ_PATIENCE, stores=OFFSET_FETCH)
        return found

    async def _fetch(
        self,
        connection: BrokerConnection,
        partitions: Collection[TopicPartition],
        found: dict[TopicPartition, WithBrokers | BrokerError],
        *,
        every: bool,
    ) -> KzConsumerError | None:
        """One request, for all offsets or these; adds what was returned. The result is why it has to be repeated."""
        request = OffsetFetchRequest(self._group, None if every else tuple(partitions))
        answer = await connection.call(request, timeout=self._timeout)
        about = f"offsets of group {self._group}"
        for error in (answer.error, *(each.error for each in answer.offsets.values())):
            if error in _MOVED | _WAIT:
                return self._to_repeat(connection, error)
        if answer.error not in _ANSWERED:
            refused = broker_error(answer.error, about)
            if not partitions:
                raise CoordinatorError(str(refused))
            found.update(dict.fromkeys(partitions, refused))
            return None
        left_out = [] if every else [str(each) for each in partitions if each not in answer.offsets]
        if left_out:
            return ConnectionLostError(f"{connection.broker} left {', '.join(left_out)} out of its answer")
        for partition, each in answer.offsets.items():
            if each.error not in _ANSWERED:
                found[partition] = broker_error(each.error, about)
            elif each.offset >= 0:
                found[partition] = WithBrokers.read(each.offset, each.metadata, each.leader_epoch)
        return None

    async def members(self) -> tuple[str, ...]:
        """The ids of the members that have joined a group of this name by a protocol of the brokers (0.9 and later).

        The coordinator refuses offsets of others while there are any. Raises CoordinatorError, SessionExpiredError.
        """
        found: list[str] = []

        async def attempt(connection: BrokerConnection) -> KzConsumerError | None:
            answer = await self._state(connection, DescribeGroupsRequest((self._group,)))
            if answer.missing and CONSUMER_GROUP_DESCRIBE in connection.versions.ranges:
                answer = await self._state(connection, ConsumerGroupDescribeRequest((self._group,)))
            if answer.error in _MOVED | _WAIT:
                return self._to_repeat(connection, answer.error)
            if answer.error not in _DESCRIBED:
                raise CoordinatorError(f"members of group {self._group}: {broker_error(answer.error)}")
            found.extend(each.id for each in answer.members)
            return None

        await self._ask(attempt, READ_PATIENCE)
        return tuple(found)

    async def _state(
        self, connection: BrokerConnection, request: DescribeGroupsRequest | ConsumerGroupDescribeRequest
    ) -> GroupState:
        answers = await connection.call(request, timeout=self._timeout)
        if (answer := answers.get(self._group)) is None:
            raise ConnectionLostError(f"{connection.broker} left group {self._group} out of its answer")
        return answer

    async def _ask(
        self,
        attempt: Callable[[BrokerConnection], Awaitable[KzConsumerError | None]],
        patience: float,
        *,
        stores: int | None = None,
    ) -> None:
        """Repeat the attempt, each with the present coordinator, until it returns None.

        `stores`: a request whose version 0 uses ZooKeeper instead of the coordinator.
        """
        reason: KzConsumerError | None = None
        pause = FIRST_PAUSE
        asked: BrokerConnection | None = None
        with anyio.move_on_after(patience):
            while True:
                try:
                    connection = await self._connection()
                    if stores is not None and connection.versions.choose(stores) == 0:
                        raise UnsupportedVersionError(f"{connection.broker}: brokers before 0.8.2 do not store offsets")
                    asked = connection
                    reason = await attempt(connection)
                    if reason is None:
                        return
                except UnsupportedVersionError as error:
                    raise CoordinatorError(f"offsets of group {self._group}: {error}") from error
                except (ConnectionLostError, ProtocolError, BrokerError) as error:
                    self._coordinator = None
                    reason = error
                asked = None
                await anyio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        why: object = reason or "no broker answers"
        if asked is not None:
            why, reason = f"{asked.broker} does not answer", None
            self._brokers.drop(asked)  # its requests must not be executed after the next ones
        self._coordinator = None
        raise CoordinatorError(f"offsets of group {self._group}: {why} (tried for {patience:g} s)") from reason

    async def _connection(self) -> BrokerConnection:
        if self._coordinator is None:
            self._coordinator = await self._find()
            if self._coordinator != self._logged:
                self._logged = self._coordinator
                log.info("coordinator found", group=self._group, broker=str(self._coordinator))
        return await self._brokers.connection(self._coordinator, "offsets")

    async def _find(self) -> Broker:
        """Ask any broker, in random order as `ClientUtils.channelToOffsetManager` (1.1.1)."""
        brokers = await self._known.brokers()
        errors: list[KzConsumerError] = [ConnectionLostError("no broker is up")]

        async def find(connection: BrokerConnection) -> Broker:
            found = await connection.call(FindCoordinatorRequest(self._group), timeout=self._timeout)
            if found.error != error_codes.NONE:
                about = f"coordinator of group {self._group}, asked of {connection.broker}"
                raise broker_error(found.error, about)
            return msgspec.structs.replace(found.broker, cluster=connection.broker.cluster)

        in_turn = random.sample(brokers, len(brokers))
        coordinator = await first_answer(self._brokers, in_turn, find, errors.append)
        if coordinator is None:
            raise errors[-1]
        return coordinator

    def _to_repeat(self, connection: BrokerConnection, error: int) -> BrokerError:
        if error in _MOVED:
            self._coordinator = None
        return broker_error(error, str(connection.broker))

    def _about(self, error: int) -> str:
        if error in _OTHER_PROTOCOL:
            return f"members of Kafka's newer consumer are in a group {self._group} with the brokers"
        if error == error_codes.GROUP_ID_NOT_FOUND:
            return f"the brokers have a share or streams group {self._group}, in which nobody else stores offsets"
        return ""
