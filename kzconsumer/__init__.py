"""kzconsumer: a member of ZooKeeper-coordinated Kafka consumer groups, in Python.

    async with kzconsumer.connect(zookeeper="zk1:2181", group="orders") as consumer:
        streams = await consumer.create_message_streams({"orders": 2})
        async for message in streams["orders"][0]:
            ...

`__all__` is the interface for applications (examples: docs/python.md). Plugin authors also use `kzconsumer.sinks`,
`kzconsumer.assignors`, `kzconsumer.settings`, `kzconsumer.cli`, `kzconsumer.testing` and the modules `errors`, `model`,
`clock` and `durable_files`. Everything else may change between releases.

Each room says in its `__init__` what it is. The modules beside them:

- One member: `consumer` (the API), `sessions` (its ZooKeeper sessions, one after another, and what outlives them),
  `member` (what lives as long as one of them; commits at intervals and at the end).
- Bounded runs: `runs` (the group's: where it ends, and whether it is over), `end_offsets` (where this member ends).
  Rejected records: `rejected` (skipped, or dead letters, where these go, how it is logged), `dead_letter_format`.
- For all: `model`, `errors`, `clock`, `counters` (of which metrics are made), `plugins` (found and loaded by name),
  `assignors` (their interface; range and round-robin), `display` (texts for people, without secrets), `resolver` (the
  addresses of a host name) and `connecting` (to one of them), `threads` (for what blocks), `installation` (what pip has
  to install).
- Files: `durable_files` (synced before they count), `own_files` (how private directories are made and a lock is taken;
  which lock: who takes it), `file_names` (topics in names).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kzconsumer.version import __version__ as __version__

if TYPE_CHECKING:
    from kzconsumer.consumer import ConsumerConnector, KafkaStream, connect
    from kzconsumer.errors import (
        BrokerError,
        BrokersUnreachableError,
        ConfigError,
        ConnectionLostError,
        CoordinatorError,
        CorruptRecordError,
        KzConsumerError,
        NotFoundError,
        NotOwnedError,
        NotPermittedError,
        OffsetLostError,
        PluginError,
        RecordRejectedError,
        SessionExpiredError,
        SinkError,
        UnsupportedVersionError,
        ZooKeeperError,
    )
    from kzconsumer.group.rebalance_listener import RebalanceListener
    from kzconsumer.model import TopicPartition
    from kzconsumer.offsets.progress import Message, Position
    from kzconsumer.settings.settings import Settings
    from kzconsumer.settings.value_readers import Exclude, Include
    from kzconsumer.sinks.interface import RecordsRejectedError, Rejected

_HOME = {
    "BrokerError": "errors",
    "BrokersUnreachableError": "errors",
    "ConfigError": "errors",
    "ConnectionLostError": "errors",
    "ConsumerConnector": "consumer",
    "CoordinatorError": "errors",
    "CorruptRecordError": "errors",
    "Exclude": "settings.value_readers",
    "Include": "settings.value_readers",
    "KafkaStream": "consumer",
    "KzConsumerError": "errors",
    "Message": "offsets.progress",
    "NotFoundError": "errors",
    "NotOwnedError": "errors",
    "NotPermittedError": "errors",
    "OffsetLostError": "errors",
    "PluginError": "errors",
    "Position": "offsets.progress",
    "RebalanceListener": "group.rebalance_listener",
    "RecordRejectedError": "errors",
    "RecordsRejectedError": "sinks.interface",
    "Rejected": "sinks.interface",
    "SessionExpiredError": "errors",
    "Settings": "settings.settings",
    "SinkError": "errors",
    "TopicPartition": "model",
    "UnsupportedVersionError": "errors",
    "ZooKeeperError": "errors",
    "connect": "consumer",
}

__all__ = [
    "BrokerError",
    "BrokersUnreachableError",
    "ConfigError",
    "ConnectionLostError",
    "ConsumerConnector",
    "CoordinatorError",
    "CorruptRecordError",
    "Exclude",
    "Include",
    "KafkaStream",
    "KzConsumerError",
    "Message",
    "NotFoundError",
    "NotOwnedError",
    "NotPermittedError",
    "OffsetLostError",
    "PluginError",
    "Position",
    "RebalanceListener",
    "RecordRejectedError",
    "RecordsRejectedError",
    "Rejected",
    "SessionExpiredError",
    "Settings",
    "SinkError",
    "TopicPartition",
    "UnsupportedVersionError",
    "ZooKeeperError",
    "connect",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    # Imported when first used: the command line asks for pyarrow only where it consumes.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
