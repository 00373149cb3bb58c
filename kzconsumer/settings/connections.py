"""Settings of the connections to ZooKeeper and to the brokers: frozen structs.

Every key is explained in config/group.reference.toml.
"""

from __future__ import annotations

from typing import Literal

from kzconsumer.settings.quantities import PositiveDuration
from kzconsumer.settings.tables import Table
from kzconsumer.settings.values import Connect, ListenerName, Text


class TlsSettings(Table, frozen=True, kw_only=True):
    """`[brokers.tls]`, `[zookeeper.tls]`: trusted authorities and our own certificate, as PEM files."""

    ca: Text | None = None
    certificate: Text | None = None
    key: Text | None = None
    key_password_file: Text | None = None
    key_password_env: Text | None = None
    verify_hostname: bool = True


class UserSettings(Table, frozen=True, kw_only=True):
    """`[zookeeper.sasl]` and `[zookeeper.digest]`: user name and password."""

    username: Text | None = None
    password_file: Text | None = None
    password_env: Text | None = None


class ZooKeeperSettings(Table, frozen=True, kw_only=True):
    """`[zookeeper]`; `zookeeper/access` checks that the keys fit together."""

    connect: Connect
    session_timeout: PositiveDuration = 6.0
    secure: bool = False
    acl: Literal["open", "creator-writes", "creator-only"] = "open"
    tls: TlsSettings = TlsSettings()
    sasl: UserSettings = UserSettings()
    digest: UserSettings = UserSettings()


class SaslSettings(Table, frozen=True, kw_only=True):
    """`[brokers.sasl]`: user name and password, for `SASL_PLAINTEXT` and `SASL_SSL`."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: Text | None = None
    password_file: Text | None = None
    password_env: Text | None = None


class BrokersSettings(Table, frozen=True, kw_only=True):
    """`[brokers]`: which of a broker's listeners to use; `brokers/security` checks that the keys fit together."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    listener: ListenerName | None = None
    tls: TlsSettings = TlsSettings()
    sasl: SaslSettings = SaslSettings()

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")
