"""When records were written: the timestamp of the record at an offset, asked of the partitions' leaders.

Owns no state. `group/outside` asks, for lag in seconds; members do not need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from anyio import to_thread

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.fetch import FetchedPartition, FetchPosition, FetchRequest
from kzconsumer.errors import BrokerError, ConnectionLost, KzConsumerError
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.records.decode import decode

# Brokers that know timestamps and this limit (0.10.1) send a larger batch all the same.
BYTES_OF_PARTITION = 16 * 1024
PARTITIONS_OF_REQUEST = 100


class RecordTimes:
    """`timeout` is for each broker's answer, in seconds."""

    def __init__(self, leaders: Leaders, brokers: Brokers, timeout: float) -> None:
        self._leaders = leaders
        self._brokers = brokers
        self._timeout = timeout

    async def written(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Milliseconds since 1970 of the first record at or after each offset, where its leader tells.

        Old formats have no timestamps, and a partition whose leader does not answer is left out: unknown.
        """
        by_leader: dict[Broker, dict[TopicPartition, int]] = {}
        try:
            for partition, leader in (await self._leaders.of(positions)).items():
                if isinstance(leader, Broker):
                    by_leader.setdefault(leader, {})[partition] = positions[partition]
        except KzConsumerError:
            return {}
        found: dict[TopicPartition, int] = {}
        for leader, wanted in by_leader.items():
            rest = iter(wanted.items())
            while part := dict(islice(rest, PARTITIONS_OF_REQUEST)):
                try:
                    while part:
                        told = await self._ask(leader, part)
                        found |= {each: time for each, time in told.items() if time is not None}
                        # Only the first has its batch whatever the size: others, cut off, may be first the next time.
                        del part[next(iter(part))]
                        part = {each: offset for each, offset in part.items() if each not in told}
                except (ConnectionLost, BrokerError):
                    break
        return found

    async def _ask(self, leader: Broker, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """None for a record without time; left out is what the answer has no whole batch of."""
        connection = await self._brokers.connection(leader, "control")
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=BYTES_OF_PARTITION * len(positions),
            partitions={each: FetchPosition(offset, BYTES_OF_PARTITION) for each, offset in positions.items()},
        )
        response = await connection.call(request, timeout=self._timeout)
        return await to_thread.run_sync(_times, response.partitions, positions)


def _times(
    fetched: Iterable[FetchedPartition], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """To be run in a thread: a compressed batch may expand to any size."""
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
