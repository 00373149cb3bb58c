"""How Kafka is reached, as the worker gets it: settings, which name files and variables and hold no secret."""

from __future__ import annotations

import msgspec

from kzconsumer.errors import ConfigError
from kzconsumer.settings.sections import BrokersSettings, FetchSettings, GroupSettings, ZooKeeperSettings
from kzconsumer.settings.settings import Settings


class Kafka(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the member; `source` begins every line about a fault of them."""

    zookeeper: ZooKeeperSettings
    brokers: BrokersSettings
    fetch: FetchSettings
    client: str
    source: str

    @classmethod
    def of(cls, settings: Settings) -> Kafka:
        """Raises ConfigError for what executors do not have."""
        if settings.brokers.sasl.mechanism == "GSSAPI":
            why = "executors that fetch have no Kerberos tickets: use another listener and mechanism"
            raise ConfigError([f"[brokers.sasl] mechanism: {why}"])
        return cls(
            zookeeper=settings.zookeeper,
            brokers=settings.brokers,
            fetch=settings.fetch,
            client=settings.group.id,
            source=settings.source,
        )

    def settings(self) -> Settings:
        """Those that are here, of a member of the same group."""
        return Settings(
            zookeeper=self.zookeeper,
            brokers=self.brokers,
            fetch=self.fetch,
            group=GroupSettings(id=self.client),
            source=self.source,
        )
