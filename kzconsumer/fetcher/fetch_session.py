"""The incremental fetch session with one broker: a request names only what has changed since the last one. Without IO.

With a session (KIP-227, brokers from 1.1 on) the broker remembers what the member reads, and where. A request names
partitions that are new, that are read elsewhere, or that are not read any more; an answer has those with records, an
error, or another high watermark. The fetcher says what it wants by `want` and `leave`, and the session finds what a
request has to name. After every answer that came in order the broker reads exactly what was wanted when the request
was made.

A session is never repaired. If it was evicted, or an answer was lost, the next request is a full one, which ends the
former session and opens another, as by Kafka's `FetchSessionHandler` (3.9). It is also the only way to another order
of partitions: the broker fills an answer in the order in which they were named, and reads those last that had records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.log_reads import FetchedPartition, FetchPosition, FetchResponse
from kzconsumer.model import TopicPartition

SESSIONS: Final = 7
"""Version of Fetch from which on brokers have sessions."""
OPENS: Final = 0
"""The epoch of a full request that opens a session."""
OPENS_NONE: Final = -1
"""The epoch of a full request that opens none. Both end the session that is named."""
LARGEST_EPOCH: Final = 2**31 - 1

_ENDED: Final = frozenset(
    {
        error_codes.FETCH_SESSION_ID_NOT_FOUND,  # evicted, or the broker was restarted
        error_codes.INVALID_FETCH_SESSION_EPOCH,
        # Of topics that requests name by ids. This client names them by name, and could only meet a broker's mistake.
        error_codes.FETCH_SESSION_TOPIC_ID_ERROR,
        error_codes.UNKNOWN_TOPIC_ID,
        error_codes.INCONSISTENT_TOPIC_ID,
    }
)
"""Errors of a whole response that end a session."""


class SessionRequest(msgspec.Struct, frozen=True):
    """What a request says of partitions, and in which session."""

    partitions: Mapping[TopicPartition, FetchPosition]
    forgotten: Sequence[TopicPartition]
    session_id: int
    epoch: int


class FetchSession:
    """A request is answered, or given up by `renew`, before the next one is made."""

    def __init__(self) -> None:
        self.reads: Mapping[TopicPartition, FetchPosition] = {}
        """What the broker reads for the last request, in its order. Valid until the next request."""
        self.speaks_for_all = False
        """The last answer was one of a session: partitions of `reads` that it does not have are as they were, and had
        nothing to send."""
        self.opened = False
        """The last answer has opened a session."""
        self.same_partitions = False
        """The last request has the broker read the partitions of the one before, wherever."""
        self._wanted: dict[TopicPartition, FetchPosition] = {}
        self._held: dict[TopicPartition, FetchPosition] = {}
        self._changed: dict[TopicPartition, None] = {}  # what is wanted of them may not be what is held
        self._served: list[TopicPartition] = []
        self.number = 0  # 0 without one
        self._asked = OPENS_NONE  # the epoch of the last request
        self.next_epoch = OPENS  # that of the next one
        self._renewed = False  # since the last request

    def __bool__(self) -> bool:
        """Whether anything is wanted."""
        return bool(self._wanted)

    @property
    def goes_on(self) -> bool:
        """The next request is one of the session that the last answer was of."""
        return self.next_epoch > OPENS

    @property
    def wants_more(self) -> bool:
        """Partitions are to be read that the last request does not have, or not there."""
        return any(
            partition in self._wanted and self._wanted[partition] != self._held.get(partition)
            for partition in self._changed
        )

    def want(self, partition: TopicPartition, position: FetchPosition) -> None:
        """Read the partition there."""
        if self._wanted.get(partition) != position:
            self._wanted[partition] = position
            self._changed[partition] = None

    def leave(self, partition: TopicPartition) -> None:
        """Do not read the partition."""
        if self._wanted.pop(partition, None) is not None:
            self._changed[partition] = None

    def __contains__(self, partition: TopicPartition) -> bool:
        """Whether the last request had the broker read the partition."""
        return partition in self._held

    def renew(self) -> None:
        """Have the next request be a full one: an answer is lost, or partitions are to be read in another order."""
        self.next_epoch, self._renewed = OPENS, True

    def request(self, order: Iterable[TopicPartition], *, opens: bool) -> SessionRequest:
        """The next request. `order`: that of partitions in a full one. `opens`: the broker has sessions."""
        renewed, self._renewed = self._renewed, False
        self._asked = self.next_epoch if opens else OPENS_NONE
        if self._asked <= OPENS:
            before = self._held
            self._held = {partition: self._wanted[partition] for partition in order if partition in self._wanted}
            self._changed.clear()
            self._served.clear()
            self.reads = self._held
            self.same_partitions = not renewed and self._held.keys() == before.keys()
            return SessionRequest(self._held, (), self.number if opens else 0, self._asked)
        number = len(self._held)
        for partition in self._served:  # as the broker has done
            if partition in self._held:
                self._held[partition] = self._held.pop(partition)
        named, forgotten = {}, []
        for partition in self._changed:
            position, held = self._wanted.get(partition), self._held.get(partition)
            if position is None:
                if held is not None:
                    del self._held[partition]
                    forgotten.append(partition)
            elif position != held:
                named[partition] = self._held[partition] = position
        self._changed.clear()
        self._served.clear()
        self.reads = self._held
        self.same_partitions = not forgotten and len(self._held) == number
        return SessionRequest(named, forgotten, self.number, self._asked)

    def answered(self, response: FetchResponse) -> bool:
        """Take the answer to the last request. False: it has nothing, as the session had ended; ask again.

        Other errors than those of sessions are the caller's.
        """
        self.speaks_for_all = self.opened = False
        in_session = self._asked > OPENS
        self.next_epoch = OPENS
        if response.error:
            if response.error == error_codes.FETCH_SESSION_ID_NOT_FOUND:
                self.number = 0
            return not (in_session and response.error in _ENDED)
        goes_on = bool(response.session_id) and (response.session_id == self.number or not in_session)
        self.number = response.session_id
        answered = {part.topic_partition for part in response.partitions}
        if not goes_on or self._renewed or not answered <= self._held.keys():
            return True  # the broker has ended it, or reads a partition that was to be forgotten
        self.next_epoch = 1 if self._asked == LARGEST_EPOCH else self._asked + 1
        if in_session:
            self.speaks_for_all = response.throttle_ms == 0  # else an empty answer may be the throttling
            self._served = [part.topic_partition for part in response.partitions if part.records]
        else:
            self.opened = True
            self._held_are(answered)
        return True

    def _held_are(self, answered: Collection[TopicPartition]) -> None:
        """The broker has a session of what it has answered."""
        if len(answered) < len(self._held):
            self._changed.update((partition, None) for partition in self._held if partition not in answered)
            self._held = {p: position for p, position in self._held.items() if p in answered}

    def close(self) -> SessionRequest | None:
        """The request that ends the session, if there is one. Its answer need not be waited for."""
        number, self.number = self.number, 0
        self.renew()
        return SessionRequest({}, (), number, OPENS_NONE) if number else None


def silence(partition: TopicPartition, end: int) -> FetchedPartition:
    """In place of what an answer of a session does not have: no records, and a log that can be read to `end` as before.

    With READ_COMMITTED too, though brokers do not look at the last stable offset here: if it moves, there are records.
    """
    return FetchedPartition(partition, error_codes.NONE, end, end, -1, (), _NOTHING)


_NOTHING: Final = memoryview(b"")
