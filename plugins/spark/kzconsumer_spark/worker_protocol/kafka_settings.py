"""Which settings of a member the worker, and tasks on other machines, get to reach Kafka, and what cannot go there.

They name files and variables, and hold no secret.
"""

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
    def of(cls, settings: Settings, *, elsewhere: bool = False) -> Kafka:
        """`elsewhere`: tasks run on other machines. Raises ConfigError for what they would lack there."""
        sasl = settings.brokers.sasl
        if elsewhere and sasl.mechanism == "GSSAPI" and sasl.keytab is None and sasl.ticket_cache is None:
            why = "executors of a cluster do not have this user's tickets: set ticket_cache, or keytab and principal"
            raise ConfigError([f"[brokers.sasl] mechanism: {why}, to what each executor has at that path"])
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
