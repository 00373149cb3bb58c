"""The coordinator of a group's offsets, which is one of the simulated brokers.

`Coordinator` owns what is stored, who is the coordinator, and what is wrong with it. Offsets are not fenced: it takes
those of a member that has lost the partition, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kzconsumer.model import TopicPartition
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.ensemble import Peer
from tests.support.simulated.kafka_frames import Kept


class Coordinator:
    """See the module."""

    def __init__(self) -> None:
        self.broker = 0
        """The one that is the coordinator now."""
        self.refuses = frames.NONE
        """The error that answers every request, as that of one that still loads."""
        self.stored: dict[TopicPartition, Kept] = {}
        self.knows: Callable[[TopicPartition], bool] = lambda partition: True
        """Of others it stores nothing."""
        self.committed: list[Callable[[Peer, TopicPartition, int], None]] = []
        """Called with who stores an offset, before it is stored."""

    def commit(self, broker: int, peer: Peer, offsets: Mapping[TopicPartition, Kept]) -> bytes:
        """What a broker answers."""
        answers = dict.fromkeys(offsets, self._refusal(broker))
        for partition, kept in offsets.items():
            if not answers[partition] and not self.knows(partition):
                answers[partition] = frames.UNKNOWN_TOPIC_OR_PARTITION
            elif not answers[partition]:
                for look in self.committed:
                    look(peer, partition, kept.offset)
                self.stored[partition] = kept
        return frames.committed(answers)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Their topic is deleted, as brokers notice from 0.10 on."""
        for partition in partitions:
            self.stored.pop(partition, None)

    def fetch(self, broker: int, partitions: Iterable[TopicPartition]) -> bytes:
        none = Kept(-1, -1, "")
        found = {each: self.stored.get(each, none) for each in partitions}
        error = self._refusal(broker)
        return frames.stored({} if error else found, error)

    def _refusal(self, broker: int) -> int:
        return self.refuses if broker == self.broker else frames.NOT_COORDINATOR
