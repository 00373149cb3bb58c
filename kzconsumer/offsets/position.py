"""How far a member has come with a partition, as it tells applications and its log.

Pure. Made by the claims, from what the writers of each position hold at the moment.
"""

from __future__ import annotations

import msgspec

from kzconsumer.model import TopicPartition


class Position(msgspec.Struct, frozen=True):
    """How far one owned partition has come; None is "not known yet"."""

    topic: str
    partition: int
    thread: str
    fetched: int | None
    consumed: int
    processed: int
    committed: int | None
    high_watermark: int | None
    """Where what can be read now ends; read committed, that is the last stable offset."""
    paused: bool = False
    incarnation: int = 0
    """The czxid of the topic's node, which tells it from an earlier topic of its name."""
    stop: int | None = None
    """The first offset that is not read any more; None for a partition that has no end."""
    led: bool = True
    """False while its leader is looked for."""
    leader: int | None = None
    """The broker it is fetched from; None while nobody fetches it."""
    queue_full: bool = False
    """Its stream's queue has no room: nothing more of it is fetched for the time being."""
    failed: bool = False
    """Its stream has been given an error: nobody fetches it any more."""

    @property
    def left(self) -> int | None:
        """Offsets that could be read now, and are not processed yet; None while that is not known."""
        if self.high_watermark is None:
            return None
        until = self.high_watermark if self.stop is None else min(self.high_watermark, self.stop)
        return max(0, until - self.processed)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def at_end(self) -> bool:
        """The application has taken everything that could be read so far."""
        return self.high_watermark is not None and self.consumed >= self.high_watermark
