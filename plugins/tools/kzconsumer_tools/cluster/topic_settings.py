"""A topic's own settings: which ones each version knows, their values, and the notification of brokers about a change.

A broker with a value that it cannot read fails at its next start, so such a value is not written.
Source: `kafka.log.LogConfig` of 0.8.2.2 to 2.8.2 and that of `org.apache.kafka.storage` 3.9.1, printed by their own
ConfigDef; `kafka.server.TopicConfigManager` (0.8.2), `DynamicConfigManager` (0.9 to 3.9).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

from kzconsumer.settings.tables import nearest
from kzconsumer.zookeeper.operations import Create
from kzconsumer_tools.paths import CONFIG_CHANGE

_INT, _LONG = 2**31 - 1, 2**63 - 1
_THROTTLED = re.compile(r"|\*|\d+:\d+(,\d+:\d+)*")


class Whole(msgspec.Struct, frozen=True):
    least: int
    most: int

    def fault(self, value: str) -> str | None:
        if re.fullmatch(r"[+-]?\d+", value, re.ASCII) and self.least <= int(value) <= self.most:
            return None
        return f"not a whole number from {self.least} to {self.most}"


class Share(msgspec.Struct, frozen=True):
    def fault(self, value: str) -> str | None:
        return None if re.fullmatch(r"0|1|[01]?\.\d+", value, re.ASCII) and float(value) <= 1 else "not from 0 to 1"


class OneOf(msgspec.Struct, frozen=True):
    words: tuple[str, ...]

    def fault(self, value: str) -> str | None:
        return None if value in self.words else f"not one of {', '.join(self.words)}"


class Throttled(msgspec.Struct, frozen=True):
    def fault(self, value: str) -> str | None:
        return None if _THROTTLED.fullmatch(value) else "neither * nor PARTITION:BROKER,PARTITION:BROKER"


Kind = Whole | Share | OneOf | Throttled

_BOOLEAN = OneOf(("true", "false"))
_COUNT, _MS = Whole(0, _INT), Whole(0, _LONG)
_CODECS = ("uncompressed", "producer", "gzip", "snappy", "lz4")

SETTINGS: Mapping[str, tuple[tuple[int, Kind], ...]] = {
    # Name -> (version of the broker's registration, values that brokers take from it on). Versions: 1: 0.8.2, 2: 0.9,
    # 3: 0.10, 4: 0.10.2, 5: 2.7. message.format.version is left out: its values differ with each release.
    "cleanup.policy": ((1, OneOf(("delete", "compact"))), (4, OneOf(("delete", "compact", "delete,compact")))),
    "compression.gzip.level": ((5, Whole(-1, 9)),),
    "compression.lz4.level": ((5, Whole(1, 17)),),
    "compression.type": ((2, OneOf(_CODECS)), (5, OneOf((*_CODECS, "zstd")))),
    "compression.zstd.level": ((5, Whole(-131072, 22)),),
    "delete.retention.ms": ((1, _MS),),
    "file.delete.delay.ms": ((1, _MS),),
    "flush.messages": ((1, Whole(1, _LONG)),),
    "flush.ms": ((1, _MS),),
    "follower.replication.throttled.replicas": ((4, Throttled()),),
    "index.interval.bytes": ((1, _COUNT),),
    "leader.replication.throttled.replicas": ((4, Throttled()),),
    "local.retention.bytes": ((5, Whole(-2, _LONG)),),
    "local.retention.ms": ((5, Whole(-2, _LONG)),),
    "max.compaction.lag.ms": ((4, Whole(1, _LONG)),),
    "max.message.bytes": ((1, _COUNT),),
    "message.downconversion.enable": ((4, _BOOLEAN),),
    "message.timestamp.after.max.ms": ((5, _MS),),
    "message.timestamp.before.max.ms": ((5, _MS),),
    "message.timestamp.difference.max.ms": ((3, _MS),),
    "message.timestamp.type": ((3, OneOf(("CreateTime", "LogAppendTime"))),),
    "min.cleanable.dirty.ratio": ((1, Share()),),
    "min.compaction.lag.ms": ((4, _MS),),
    "min.insync.replicas": ((1, Whole(1, _INT)),),
    "preallocate": ((2, _BOOLEAN),),
    "remote.log.copy.disable": ((5, _BOOLEAN),),
    "remote.log.delete.on.disable": ((5, _BOOLEAN),),
    "remote.storage.enable": ((5, _BOOLEAN),),
    "retention.bytes": ((1, Whole(-1, _LONG)),),
    "retention.ms": ((1, _MS), (3, Whole(-1, _LONG))),  # in 0.8, -1 does not mean unlimited
    "segment.bytes": ((1, Whole(14, _INT)),),
    "segment.index.bytes": ((1, Whole(4, _INT)),),
    "segment.jitter.ms": ((1, _MS),),
    "segment.ms": ((1, Whole(1, _LONG)),),
    "unclean.leader.election.enable": ((1, _BOOLEAN),),
}


class Setting(msgspec.Struct, frozen=True):
    """A topic's own setting, present and requested; None: not set."""

    name: str
    old: str | None
    new: str | None


class OwnSettings(msgspec.Struct, frozen=True):
    """An item of the result of `get`."""

    topic: str
    config: dict[str, str]


class Configured(msgspec.Struct, frozen=True):
    """The result of `set`: the settings that change."""

    topic: str
    executed: bool
    settings: tuple[Setting, ...]


def changed(
    config: Mapping[str, str], give: Mapping[str, str], take: Collection[str], brokers: Collection[int]
) -> list[Setting]:
    """The settings that change. `brokers`: versions of the live brokers' registrations.

    Raises ValueError for a value in `give` that the oldest broker would not take; any name can be unset by `take`.
    """
    oldest = min(brokers)
    for name, value in give.items():
        kinds = [kind for since, kind in SETTINGS.get(name, ()) if since <= oldest]
        if not kinds:
            close = nearest(name, [each for each, of in SETTINGS.items() if of[0][0] <= oldest])
            raise ValueError(
                f"{name} is not a setting that all brokers know" + (f"; did you mean {close}?" if close else "")
            )
        if fault := kinds[-1].fault(value):
            raise ValueError(f"{name}={value}: {fault}")
    wanted = {**give, **dict.fromkeys(take)}
    return [Setting(name, config.get(name), new) for name, new in wanted.items() if config.get(name) != new]


def encode_config(config: Mapping[str, str]) -> bytes:
    """`/config/topics/<topic>`."""
    return msgspec.json.encode({"version": 1, "config": config})


def notification(topic: str, brokers: Collection[int]) -> Create:
    """Makes brokers read the topic's settings. Raises ValueError if there is no format that all of them read."""
    oldest, newest = min(brokers), max(brokers)
    content: object = {"version": 2, "entity_path": f"topics/{topic}"}  # from 0.10.1 on
    if oldest < 4:
        content = {"version": 1, "entity_type": "topics", "entity_name": topic}  # from 0.9 on
    if oldest < 2:
        if newest > 1:
            raise ValueError(
                "brokers of 0.8 and later ones have no notification format in common; finish the upgrade first"
            )
        content = topic
    return Create(CONFIG_CHANGE, msgspec.json.encode(content), sequential=True)
