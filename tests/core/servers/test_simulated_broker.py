"""The simulated broker answers as a real one does: the same requests to both, through the product's own connection.

Compared are errors, offsets, the sizes of what is sent and how long it is waited for. Not compared: what a broker says
while leaders change, and retention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    LATEST,
    AskedEpoch,
    FetchPosition,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.versions import Versions
from kzconsumer.model import Broker, TopicPartition
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.simulated import haste
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.group import simulated_group
from tests.support.simulated.partition_logs import PORT, host

LIMIT = 20.0
RECORDS = 20
VALUE = 100
BATCH = 61 + 109
"""Bytes of one record without key in a batch of its own."""
PARTITIONS = 3
SIZES = (1, BATCH - 1, BATCH, BATCH + 1, 5 * BATCH + 30, 1 << 20)
WAIT_MS = 300


class Asked:
    """Asks one broker, and writes down what it says of a topic."""

    def __init__(self, connection: BrokerConnection, topic: str, clock: Callable[[], float]) -> None:
        self.connection = connection
        self.topic = topic
        self.clock = clock
        connection.versions = Versions({key: (0, newest) for key, newest in frames.VERSIONS.items()})

    async def everything(self) -> list[object]:
        found: list[object] = [await self.leaders(), await self.ends(), await self.epochs()]
        for offset in (0, 7, RECORDS - 1, RECORDS, RECORDS + 1):
            for each in SIZES:
                for whole in SIZES:
                    positions = {number: FetchPosition(offset, each) for number in range(PARTITIONS)}
                    found.append((offset, each, whole, await self.fetched(positions, whole, 0, 0)))
        missing = {PARTITIONS: FetchPosition(0, 1000)}
        found.append(await self.fetched(missing, 1000, WAIT_MS, 1))
        end, begin = {0: FetchPosition(RECORDS, 1000)}, {0: FetchPosition(0, 1000)}
        for positions, least in ((end, 1), (begin, 1), (begin, 100_000)):
            began = self.clock()
            said = await self.fetched(positions, 1 << 20, WAIT_MS, least)
            found.append((said, self.clock() - began > WAIT_MS / 1000 * 0.9))
        return found + await self.session()

    async def session(self) -> list[object]:
        """A fetch session from its opening to its end, with requests that it refuses."""
        begin, end, behind = FetchPosition(0, 1000), FetchPosition(RECORDS, 1000), FetchPosition(RECORDS + 1, 1000)
        found: list[object] = []
        self.number = 0

        async def ask(epoch: int, positions: dict[int, FetchPosition], *forgotten: int, number: int = 0) -> None:
            asked = {TopicPartition(self.topic, number): position for number, position in positions.items()}
            forget = [TopicPartition(self.topic, each) for each in forgotten]
            wait, number = WAIT_MS, number or self.number
            request = FetchRequest(wait, 1, 1, asked, session_id=number, session_epoch=epoch, forgotten=forget)
            began = self.clock()
            response = await self.connection.call(request, timeout=LIMIT)
            if epoch == 0:
                self.number = response.session_id
            same = self.number == response.session_id
            waited = self.clock() - began > WAIT_MS / 1000 * 0.9
            found.append((response.error, same, response.session_id > 0, waited, _parts(response)))

        await ask(0, {0: begin, 1: begin})
        await ask(1, {})  # the same again
        await ask(2, {})  # the other one: each that had records is read last from now on
        await ask(3, {0: end, 2: end})
        await ask(4, {}, 1)  # nothing new
        await ask(5, {1: behind})
        await ask(6, {})  # errors are always reported
        await ask(7, {1: end})
        await ask(8, {0: begin})
        await ask(8, {})  # the epoch is over
        await ask(9, {0: end}, PARTITIONS)
        await ask(10, {}, number=self.number + 1)
        await ask(10, {}, 0, 1, 2)  # which ends it
        await ask(11, {})
        await ask(0, {0: begin, PARTITIONS: begin})
        await ask(1, {})
        former = self.number
        await ask(0, {0: begin})  # in its place
        await ask(2, {}, number=former)
        await ask(-1, {0: begin})  # it ends, and no other begins
        await ask(1, {})
        return found

    async def leaders(self) -> object:
        about = (await self.connection.call(MetadataRequest((self.topic, "none")), timeout=LIMIT)).topics
        partitions = about[self.topic].partitions
        led = {number: (each.error, each.leader_epoch) for number, each in sorted(partitions.items())}
        return about["none"].error, led

    async def ends(self) -> object:
        said = []
        for at in (EARLIEST, LATEST):
            asked = {TopicPartition(self.topic, number): at for number in range(PARTITIONS + 1)}
            answers = await self.connection.call(ListOffsetsRequest(asked), timeout=LIMIT)
            said.append(sorted((each.partition, answer.error, answer.offset) for each, answer in answers.items()))
        return said

    async def epochs(self) -> object:
        """Where epochs end; and what a broker says to those who take it to lead in another epoch."""
        said: list[object] = []
        for leader in (-1, 0, 1):
            for epoch in (0, 1, 7):
                asked = {
                    TopicPartition(self.topic, number): AskedEpoch(epoch, leader) for number in range(PARTITIONS + 1)
                }
                ends = await self.connection.call(OffsetForLeaderEpochRequest(asked), timeout=LIMIT)
                said.append(
                    sorted((each.partition, end.error, end.epoch, end.end_offset) for each, end in ends.items())
                )
            where = TopicPartition(self.topic, 0)
            listed = await self.connection.call(ListOffsetsRequest({where: LATEST}, 0, {where: leader}), timeout=LIMIT)
            said.append([(each.error, each.offset, each.leader_epoch) for each in listed.values()])
            said.append(await self.fetched({0: FetchPosition(0, 1000, leader)}, 1000, 0, 0))
        return said

    async def fetched(self, positions: dict[int, FetchPosition], most: int, wait: int, least: int) -> object:
        """(partition, error, high watermark, start of the log, bytes) of each, in the order of the response."""
        asked = {TopicPartition(self.topic, number): position for number, position in positions.items()}
        return _parts(await self.connection.call(FetchRequest(wait, least, most, asked), timeout=LIMIT))


def _parts(response: FetchResponse) -> list[object]:
    return [
        (part.topic_partition.partition, part.error, part.high_watermark, part.log_start_offset, len(part.records))
        for part in response.partitions
    ]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the simulated broker says. These requests are no member's, and made in haste."""
    monkeypatch.setattr(haste, "MOST", 10_000)
    with simulated_group(1) as group:
        group.logs.grow("t", PARTITIONS)
        group.logs.stop()
        for log in group.logs.logs.values():
            log.key = None
            for _ in range(RECORDS):
                log.append(1, VALUE)
        process = group.world.process("asks")

        async def ask() -> list[object]:
            broker = Broker(0, host(0), PORT)
            connection = await BrokerConnection.open(broker, client_id="test", timeout=LIMIT)
            return await Asked(connection, "t", lambda: group.world.now).everything()

        task = process.create_task(ask())
        assert group.world.pass_time(LIMIT, task.done)
        return task.result()


async def test_the_same_requests_have_the_same_answers(
    simulated: list[object], cluster_of: Callable[[str], Cluster], unique: str
) -> None:
    cluster = cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, PARTITIONS)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for _ in range(RECORDS):  # one batch each
        for number in range(PARTITIONS):
            producer.produce(unique, bytes(VALUE), partition=number)
        await asyncio.to_thread(producer.flush, LIMIT)
    at = cluster.brokers[1]
    connection = await BrokerConnection.open(Broker(1, at.host, at.port), client_id="test", timeout=LIMIT)
    try:
        real = await Asked(connection, unique, asyncio.get_running_loop().time).everything()
    finally:
        connection.close()
    for said, expected in zip(simulated, real, strict=True):
        assert said == expected
