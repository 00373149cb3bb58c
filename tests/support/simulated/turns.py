"""Partitions take turns: none of a broker's partitions waits while others are delivered. Checked at every fetch.

`Turns` owns, for each connection, how often a partition was passed over and when it was last asked for; and, for each
stream, how many bytes of each other partition it has handed out while chunks of a partition were queued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.streams.cursor import StreamCursor
from tests.support.members import sessions_of
from tests.support.simulated.broker import SimulatedBroker
from tests.support.simulated.ensemble import Peer
from tests.support.simulated.kafka_frames import Fetch, Part
from tests.support.simulated.member import Member
from tests.support.simulated.network import Line
from tests.support.simulated.promises import Promises

PATIENCE = 3.0
"""Seconds in which a partition has to be asked for again if others of its stream are."""


@dataclass
class Turn:
    """What a connection has of a partition. The next fetch state, after a seek or a move, may look for its leader."""

    state: tuple[int, ConsumerThreadId, int]
    """Claim, thread, and number of seeks and resumes."""
    asked: float
    requests: int = 0
    """Answered ones. The first may have been sent for an earlier state."""
    passed_over: int = 0
    among: int = 0
    """The most partitions of a request since it was served."""


class Turns:
    """See the module."""

    def __init__(self, brokers: Iterable[SimulatedBroker], promises: Promises) -> None:
        self._promises = promises
        self._turns: WeakKeyDictionary[Peer, dict[TopicPartition, Turn]] = WeakKeyDictionary()
        self._brokers = list(brokers)
        for broker in self._brokers:
            broker.answered.append(self._answered)
        self._chunks: WeakKeyDictionary[StreamCursor, Chunk] = WeakKeyDictionary()
        # Of each claim that has chunks queued: the bytes of each other that were handed out since its last turn.
        self._passed: WeakKeyDictionary[StreamCursor, dict[Progress, Counter[Progress]]] = WeakKeyDictionary()
        self._largest = 0
        promises.observers.append(self._handed_out)

    def _handed_out(self, member: Member, partition: TopicPartition) -> None:
        """Between two turns of a claim, each other has no more bytes than that turn's and one chunk of its own.

        Each is counted for itself: several that have one chunk each, one after the other, are never queued together.
        """
        assert member.connector is not None
        for cursor in sessions_of(member.connector).cursors.values():
            chunk = cursor.chunk
            if chunk is None or chunk.progress.topic_partition != partition or self._chunks.get(cursor) is chunk:
                continue
            self._chunks[cursor] = chunk
            self._largest = max(self._largest, chunk.size)
            before = self._passed.get(cursor, {})
            waiting = {claim: before.get(claim) or Counter[Progress]() for claim in cursor.queue.queued}
            waiting.pop(chunk.progress, None)
            self._passed[cursor] = waiting
            for claim, passed in waiting.items():
                passed[chunk.progress] += chunk.size
                if passed[chunk.progress] > 2 * self._largest:
                    had = f"{member.name} had {passed[chunk.progress]} bytes of {partition}"
                    self._promises.violated(f"{claim.topic_partition} is queued, and {had}")

    def _answered(self, peer: Peer, request: Fetch, parts: list[Part]) -> None:
        assert isinstance(peer, Line)
        member = next((each for each in self._promises.members if each.process is peer.process), None)
        if member is None or member.connector is None:
            return
        turns, now, held = self._turns.setdefault(peer, {}), self._promises.world.now, member.held
        served = any(part.records for part in parts)
        threads = set()
        for asked, part in zip(request.partitions, parts, strict=True):
            partition = asked.partition
            state = self._state(member, held, partition)
            if part.error or state is None:
                turns.pop(partition, None)
                continue
            threads.add(state[1])
            turn = turns.get(partition)
            if turn is None or turn.state != state:
                turn = turns[partition] = Turn(state, now)
            turn.requests, turn.asked = turn.requests + 1, now
            if part.records or part.high_watermark <= asked.offset:
                turn.passed_over = turn.among = 0
            elif served and not any(each.may_send_nothing(partition) for each in self._brokers):
                turn.passed_over, turn.among = turn.passed_over + 1, max(turn.among, len(parts))
                if turn.passed_over > 2 * turn.among:
                    times = f"{turn.passed_over} responses"
                    self._promises.violated(f"{partition} had records for {member.name}, and others came in {times}")
        for partition in turns.keys() - {asked.partition for asked in request.partitions}:
            turn = turns[partition]
            if self._state(member, held, partition) != turn.state:
                del turns[partition]
            elif partition in member.connector.paused or any(
                each.may_send_nothing(partition) or each.quota is not None for each in self._brokers
            ):
                turn.asked = now  # by a quota, the answers for others may take longer
            elif turn.requests > 1 and turn.state[1] in threads and now - turn.asked > PATIENCE:
                self._promises.violated(f"{member.name} asks for others and not for {partition}")

    def _state(
        self, member: Member, held: Mapping[TopicPartition, ConsumerThreadId], partition: TopicPartition
    ) -> tuple[int, ConsumerThreadId, int] | None:
        thread = held.get(partition)
        began_anew = len(member.seeks) + member.resumes
        return None if thread is None else (self._promises.claim_of(partition), thread, began_anew)
