"""The positions of an owned partition, as shown to applications and in the log."""

from __future__ import annotations

import msgspec

from kzconsumer.model import TopicPartition


class Position(msgspec.Struct, frozen=True):
    """The positions of one owned partition; None is "not known yet"."""

    topic: str
    partition: int
    thread: str
    fetched: int | None
    consumed: int
    processed: int
    committed: int | None
    high_watermark: int | None
    """The end of what can be read now; with read_committed the last stable offset."""
    paused: bool = False
    incarnation: int = 0
    """The czxid of the topic's node, which differs for a recreated topic."""
    end: int | None = None
    """The first offset that will not be read, or None if the partition has no end."""
    led: bool = True
    """False while its leader is being searched."""
    leader: int | None = None
    """The broker it is fetched from; None while it is not fetched."""
    queue_full: bool = False
    """Its stream's queue is full, so it is not fetched at the moment."""
    verified: bool = True
    """Its present leader has served a fetch at its position: the log holds what was read before."""
    throttled: bool = False
    """A quota of its broker holds this member back."""
    failed: bool = False
    """Its stream has raised an error, and it is no longer fetched."""
    high_watermark_at: float | None = None
    """When a broker returned `high_watermark`, by `kzconsumer.clock`: while none answers, it says less and less."""

    @property
    def left(self) -> int | None:
        """Offsets that could be read now and are not processed yet; None while unknown."""
        if self.high_watermark is None:
            return None
        until = self.high_watermark if self.end is None else min(self.high_watermark, self.end)
        return max(0, until - self.processed)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def at_end(self) -> bool:
        """Whether the application has taken everything that can be read."""
        return self.high_watermark is not None and self.consumed >= self.high_watermark
