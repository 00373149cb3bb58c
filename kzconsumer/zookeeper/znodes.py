"""What znodes hold: the bytes brokers and members write, to values and back.

Pure. Readers take what any broker from 0.8.2 to 3.9 and any original consumer writes; writers produce the original's
form exactly, but for fields the original ignores. A reader raises ValueError with the reason; callers add the path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from kzconsumer.model import MOST_STREAMS
from kzconsumer.settings.topic_filter import BLACK_LIST, WHITE_LIST, TopicFilter
from kzconsumer.zookeeper.connect_string import path_fault
from kzconsumer.zookeeper.listeners import Listener
from kzconsumer.zookeeper.node_json import read_json, read_object
from kzconsumer.zookeeper.paths import is_number

STATIC = "static"

MOST_PARTITIONS = 20_000
"""Of one topic: one with more is taken for unreadable."""

_SHOWN = 80
"""Characters of a name in an error."""

# As kafka.cluster.EndPoint reads it: the listener's name may hold "_", which no URL scheme may.
ENDPOINT = re.compile(r"(?P<listener>[^:]*)://\[?(?P<host>[0-9a-zA-Z\-%._:]*?)\]?:(?P<port>[0-9]+)")


_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Registration(msgspec.Struct, frozen=True):
    """What a member says of itself in `ids/<consumer>`: topic (or one pattern) -> number of streams."""

    pattern: str
    subscription: dict[str, int]
    ours: bool

    @classmethod
    def of_topics(cls, topics: Mapping[str, int]) -> Registration:
        """A member of ours for these topics: topic -> number of streams. Raises ValueError beyond MOST_STREAMS."""
        _check_streams(topics)
        return cls(STATIC, dict(topics), ours=True)

    @classmethod
    def of_filter(cls, topics: TopicFilter, streams: int) -> Registration:
        """A member of ours for all topics that the list allows. Raises ValueError beyond MOST_STREAMS."""
        _check_streams({topics.regex: streams})
        return cls(topics.pattern, {topics.regex: streams}, ours=True)


def encode_registration(
    subscription: Mapping[str, int], timestamp_ms: int, version: str, pattern: str = STATIC
) -> bytes:
    """The original's JSON with one field of ours: the original reads `pattern` and `subscription` only."""
    return msgspec.json.encode(
        {
            "version": 1,
            "subscription": subscription,
            "pattern": pattern,
            "timestamp": str(timestamp_ms),
            "kzconsumer": version,
        }
    )


def decode_registration(data: bytes) -> Registration:
    """Reads any member's registration; 1.1.x retries with doubled backslashes, for 0.8 writers, and so do we.

    All members read everybody's at each rebalance, so what nobody means is refused: more than MOST_STREAMS streams, and
    names that ZooKeeper takes for no path (the original fails on those itself).
    """
    try:
        fields = read_object(data)
    except ValueError:
        fields = read_object(data.replace(b"\\", b"\\\\"))
    subscription = fields.get("subscription")
    pattern = fields.get("pattern")
    if not isinstance(subscription, dict) or not isinstance(pattern, str):
        raise ValueError("no pattern or no subscription")
    for topic, streams in subscription.items():
        if not isinstance(streams, int) or isinstance(streams, bool) or streams < 1:
            shown = streams if isinstance(streams, (int, float)) else type(streams).__name__
            raise ValueError(f"{shown} is not a number of streams (for {topic[:_SHOWN]!r})")
    _check_streams(subscription)
    if pattern not in (WHITE_LIST, BLACK_LIST):
        pattern = STATIC  # as the original reads any other word
    elif not subscription:
        raise ValueError(f"a {pattern} without a pattern")
    if pattern == STATIC:
        for topic in subscription:
            if fault := path_fault(f"/{topic}"):
                raise ValueError(f"{topic[:_SHOWN]!r} is no topic: its path {fault}")
    return Registration(pattern=pattern, subscription=subscription, ours="kzconsumer" in fields)


def _check_streams(subscription: Mapping[str, int]) -> None:
    if sum(subscription.values()) > MOST_STREAMS:
        raise ValueError(f"more than {MOST_STREAMS} streams in one member")


def decode_listeners(data: bytes) -> tuple[Listener, ...]:
    """Where a broker listens, from registrations v1 to v5, in their order."""
    fields = read_object(data)
    host, port = fields.get("host"), fields.get("port")
    endpoints = fields.get("endpoints")
    if endpoints is None:  # version 1: 0.8
        if not isinstance(host, str) or not isinstance(port, int):
            raise ValueError("no host or no port")
        return (Listener("PLAINTEXT", "PLAINTEXT", host, port),)
    protocols = fields.get("listener_security_protocol_map") or {}
    if not isinstance(endpoints, list) or not isinstance(protocols, dict):
        raise ValueError("endpoints of an unknown form")
    if not all(isinstance(text, str) for text in (*endpoints, *protocols.values())):
        raise ValueError("endpoints of an unknown form")
    matches = [match for endpoint in endpoints if (match := ENDPOINT.fullmatch(endpoint))]
    return tuple(
        Listener(
            match["listener"],
            protocols.get(match["listener"]) or match["listener"],
            # An empty host means all interfaces: the registration's own host field says which name to use.
            match["host"] or (host if isinstance(host, str) else ""),
            int(match["port"]),
        )
        for match in matches
    )


class Topic(msgspec.Struct, frozen=True):
    """A topic that exists: its partitions, ascending, and the czxid that tells it from an earlier one of its name."""

    partitions: tuple[int, ...]
    incarnation: int


def decode_topic(data: bytes) -> tuple[int, ...]:
    """The partition numbers of a topic, ascending, from `/brokers/topics/<topic>` versions 1 to 3."""
    partitions = read_object(data).get("partitions")
    if not isinstance(partitions, dict):
        raise ValueError("no partitions")
    if len(partitions) > MOST_PARTITIONS:
        raise ValueError(f"more than {MOST_PARTITIONS} partitions")
    for name in partitions:
        if not is_number(name):
            raise ValueError(f"{name[:_SHOWN]!r} is not a partition")
    return tuple(sorted(int(name) for name in partitions))


def encode_offset(offset: int) -> bytes:
    return b"%d" % offset


def decode_offset(data: bytes) -> int | None:
    """A stored offset: decimal text, the next record to be read. None for the original's -1, "no offset stored"."""
    text = data.decode("ascii").strip()
    if text == "-1":
        return None
    if not text.isdigit() or int(text) >= 1 << 63:
        raise ValueError(f"{text[:40]!r} is not an offset")
    return int(text)


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A range on its way into a replayable sink, `first <= offset < until`: whoever owns the partition next replays it.

    The transaction that writes it also makes the stored offset `first`, and leaves the offset's node at
    `offset_version`: as long as both hold, nobody has moved the offset under it. `id` tells it from every other plan.
    `records` and `checksum` are the range's as it was planned, read with `isolation`; `incarnation` and `epoch` say of
    which records its offsets speak, `fingerprint` for which destination they are. `steps` names those of the work that
    are done (`sinks/steps`); a plan without any does not mention them.
    """

    id: str
    first: _Offset
    until: _Offset
    offset_version: int
    records: _Count
    checksum: str
    incarnation: str
    epoch: int
    isolation: str
    fingerprint: str
    steps: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.first >= self.until:
            raise ValueError(f"a plan from {self.first} until {self.until}")

    @property
    def done(self) -> tuple[str, ...]:
        """The steps that are done, in the order in which they were."""
        return self.steps or ()


class CommitMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Up to which offset a destination is committed. Each commit of a replayable sink sets it, in its transaction.

    Unlike the stored offset, nobody else writes it. It counts for that `fingerprint`, `incarnation` and `epoch` only.
    `written` is the last range that the destination took, as first and until; absent before there is one.
    """

    until: _Offset
    incarnation: str
    epoch: int
    fingerprint: str
    written: tuple[_Offset, _Offset] | msgspec.UnsetType = msgspec.UNSET


class ClaimRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `claims/<topic>/<partition>`; the node's *version* is the fence.

    `incarnation` is the czxid of the topic's node in hexadecimal, `epoch` counts offset resets, `fingerprint` names the
    destination of the owner's replayable sink ("" without one), `plan` is the range in flight. `mark` is of the
    destination that committed last, which need not be the owner's; a record without one does not mention it.
    """

    version: int
    assignor: str
    incarnation: str
    epoch: int = 0
    fingerprint: str = ""
    plan: Plan | None = None
    mark: CommitMark | msgspec.UnsetType = msgspec.UNSET

    @property
    def committed_until(self) -> int | None:
        """Up to where the owner's destination is committed, of this topic and epoch; None: that is not known."""
        return mark.until if (mark := self._own_mark) is not None else None

    @property
    def last_written(self) -> tuple[int, int] | None:
        """The last range, as first and until, that the owner's destination took; None: that is not known."""
        mark = self._own_mark
        return mark.written if mark is not None and mark.written is not msgspec.UNSET else None

    @property
    def _own_mark(self) -> CommitMark | None:
        mark = self.mark
        if mark is msgspec.UNSET:
            return None
        same = (mark.incarnation, mark.epoch, mark.fingerprint) == (self.incarnation, self.epoch, self.fingerprint)
        return mark if same else None

    def after(self, offset: int, plan: Plan | None, epoch: int, written: tuple[int, int] | None = None) -> ClaimRecord:
        """The record as the owner leaves it that stores `offset`, with this plan. A mark moves on, never back.

        `written` is the last range that the owner had the destination take, None if none.
        """
        record = msgspec.structs.replace(self, plan=plan, epoch=epoch)
        if not self.fingerprint:
            return record
        mark = CommitMark(
            until=max(offset, record.committed_until or 0),
            incarnation=self.incarnation,
            epoch=epoch,
            fingerprint=self.fingerprint,
            written=written or record.last_written or msgspec.UNSET,
        )
        return msgspec.structs.replace(record, mark=mark)


CLAIM_RECORD_VERSION = 1


def encode_claim_record(record: ClaimRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_claim_record(data: bytes) -> ClaimRecord:
    """Raises ValueError for a format this version does not know: such a partition must not be consumed."""
    try:
        fields = read_json(data)
        if isinstance(fields, dict) and isinstance(plan := fields.get("plan"), dict):
            plan.pop("attempts", None)  # of failed writes, which nobody ever counted: plans do not have it any more
        record = msgspec.convert(fields, type=ClaimRecord)
    except (ValueError, msgspec.DecodeError) as error:
        raise ValueError(f"not a claim record: {error}") from error
    if record.version != CLAIM_RECORD_VERSION:
        raise ValueError(f"claim record of format {record.version}, this version knows {CLAIM_RECORD_VERSION}")
    return record
