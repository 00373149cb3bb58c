"""kzconsumer: a member of ZooKeeper-coordinated Kafka consumer groups, in Python.

    settings = kzconsumer.Settings.load("group.toml")
    async with kzconsumer.connect(settings) as consumer:
        streams = await consumer.create_message_streams({"orders": 2})
        async for message in streams["orders"][0]:
            ...

The names below are the public interface. Plugins also use `kzconsumer.assignors`, `kzconsumer.sinks`,
`kzconsumer.settings`, `kzconsumer.testing` and the modules `errors`, `model`, `clock` and `durable_files`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kzconsumer.version import __version__ as __version__

if TYPE_CHECKING:
    from kzconsumer.consumer import ConsumerConnector, connect
    from kzconsumer.errors import (
        ConfigError,
        CorruptRecord,
        KzConsumerError,
        NotOwned,
        OffsetLost,
        PluginError,
        RecordRejected,
        SinkFailed,
    )
    from kzconsumer.group.listener import RebalanceListener
    from kzconsumer.model import TopicPartition
    from kzconsumer.settings.settings import Settings
    from kzconsumer.settings.topic_filter import Blacklist, Whitelist
    from kzconsumer.sinks.interface import RecordsRejected, Rejected
    from kzconsumer.streams.kafka_stream import KafkaStream
    from kzconsumer.streams.message import Message

_HOME = {
    "Blacklist": "settings.topic_filter",
    "ConfigError": "errors",
    "ConsumerConnector": "consumer",
    "CorruptRecord": "errors",
    "KafkaStream": "streams.kafka_stream",
    "KzConsumerError": "errors",
    "Message": "streams.message",
    "NotOwned": "errors",
    "OffsetLost": "errors",
    "PluginError": "errors",
    "Settings": "settings.settings",
    "RebalanceListener": "group.listener",
    "RecordRejected": "errors",
    "RecordsRejected": "sinks.interface",
    "Rejected": "sinks.interface",
    "SinkFailed": "errors",
    "TopicPartition": "model",
    "Whitelist": "settings.topic_filter",
    "connect": "consumer",
}

__all__ = [
    "Blacklist",
    "ConfigError",
    "ConsumerConnector",
    "CorruptRecord",
    "KafkaStream",
    "KzConsumerError",
    "Message",
    "NotOwned",
    "OffsetLost",
    "PluginError",
    "RebalanceListener",
    "RecordRejected",
    "RecordsRejected",
    "Rejected",
    "Settings",
    "SinkFailed",
    "TopicPartition",
    "Whitelist",
    "connect",
]


def __getattr__(name: str) -> object:
    # Imported when first used: the command line asks for pyarrow and numpy only where it consumes.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
