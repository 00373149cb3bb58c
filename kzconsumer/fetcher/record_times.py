"""Timestamps of the records at given offsets, fetched from the partitions' leaders; for lag in seconds."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

import anyio

from kzconsumer.brokers.leaders import Leaders, not_led, why_unknown
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import FetchedPartition, FetchPosition, FetchRequest
from kzconsumer.errors import KzConsumerError
from kzconsumer.lag.partition import Why
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.records.decode import decode
from kzconsumer.threads import in_thread
from kzconsumer.zookeeper.watches import outcomes

# Brokers that store timestamps and know this limit (0.10.1) send a larger batch all the same.
BYTES_OF_PARTITION = 16 * 1024
PARTITIONS_OF_REQUEST = 100


class RecordTimes:
    """`timeout` is for each broker's response, in seconds."""

    def __init__(self, leaders: Leaders, brokers: Brokers, timeout: float) -> None:
        self._leaders = leaders
        self._brokers = brokers
        self._timeout = timeout

    async def written(
        self, positions: Mapping[TopicPartition, int], *, within: float = math.inf
    ) -> dict[TopicPartition, int | Why]:
        """Of each, the timestamp of the first record at or after the offset, in ms since 1970, or why it is unknown.

        What has not been answered `within` so many seconds is "record not read". Raises nothing.
        """
        found: dict[TopicPartition, int | Why] = {}
        with anyio.move_on_after(within):
            try:
                await self._find(positions, found)
            except KzConsumerError as error:
                return dict.fromkeys(positions, why_unknown(error))
        return {each: found.get(each, Why("record not read")) for each in positions}

    async def _find(self, positions: Mapping[TopicPartition, int], found: dict[TopicPartition, int | Why]) -> None:
        by_leader, leaderless = await self._leaders.grouped(positions)
        found.update((each, why_unknown(not_led(each, why))) for each, why in leaderless.items())

        async def fetch(leader: Broker, part: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
            times = await self._fetch_times(leader, part)
            found.update((each, Why("no timestamps") if time is None else time) for each, time in times.items())
            return times.keys()

        async def ask(leader: Broker, led: Iterable[TopicPartition]) -> None:
            rest = iter(led)
            while part := {each: positions[each] for each in islice(rest, PARTITIONS_OF_REQUEST)}:
                for each in part.keys() - await fetch(leader, part):
                    # The first partition of a response has its batch whatever the size.
                    await fetch(leader, {each: part[each]})

        await outcomes([ask(leader, led) for leader, led in by_leader.items()])

    async def _fetch_times(
        self, leader: Broker, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """None for a record without timestamp; partitions without a whole batch in the response are left out."""
        connection = await self._brokers.connection(leader, "control")
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=BYTES_OF_PARTITION * len(positions),
            partitions={each: FetchPosition(offset, BYTES_OF_PARTITION) for each, offset in positions.items()},
        )
        response = await connection.call(request, timeout=self._timeout)
        return await in_thread(_times, response.partitions, positions)


def _times(
    fetched: Iterable[FetchedPartition], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """Runs in a thread: a compressed batch may expand to any size."""
    found: dict[TopicPartition, int | None] = {}
    for part in fetched:
        if part.topic_partition not in positions:
            continue
        topic, partition = part.topic_partition
        read = decode(part.records, topic=topic, partition=partition, start=positions[part.topic_partition])
        if read.records:
            time = read.records.columns().column("timestamp")[0]
            found[part.topic_partition] = time.value if time.is_valid else None
    return found
