"""Settings of the connections to ZooKeeper and to the brokers: addresses, TLS, users and passwords."""

from __future__ import annotations

from typing import Literal

from kzconsumer.settings.quantities import PositiveDuration
from kzconsumer.settings.tables import Table
from kzconsumer.settings.values import Connect, ListenerName, Text


class TlsSettings(Table, frozen=True, kw_only=True):
    """`[brokers.tls]`, `[zookeeper.tls]`: whom to trust and who we are. Files are PEM."""

    # certificates of the authorities a server's certificate may be signed by; the system's own when left out
    ca: Text | None = None
    # ours, where servers ask for one: the certificate (with what leads to the authority), and its key if that is apart
    certificate: Text | None = None
    key: Text | None = None
    # of an encrypted key: a file that holds the password, or the name of an environment variable
    key_password_file: Text | None = None
    key_password_env: Text | None = None
    # whether a server's certificate must be for the host name that it is reached by: a broker's registration, `connect`
    verify_hostname: bool = True


class UserSettings(Table, frozen=True, kw_only=True):
    """`[zookeeper.sasl]` and `[zookeeper.digest]`: who we are; nobody where no name is given."""

    username: Text | None = None
    # a file that holds the password, or the name of an environment variable; never the password itself
    password_file: Text | None = None
    password_env: Text | None = None


class ZooKeeperSettings(Table, frozen=True, kw_only=True):
    """`[zookeeper]`: where the group is coordinated. What belongs together, `zookeeper/access` checks."""

    # host:port,host:port with an optional /chroot behind the last; port 2181 when left out
    connect: Connect
    # asked of the server, which may give another; how long the partitions of a dead member stay its own
    session_timeout: PositiveDuration = 6.0
    # TLS: the ports are those that the servers call secureClientPort
    secure: bool = False
    # of the group's nodes that we make. open: anyone may do anything; creator-writes: anyone may read, only who we are
    # may write; creator-only: not even read. Members of a group must agree on it, and on who they are
    acl: Literal["open", "creator-writes", "creator-only"] = "open"
    tls: TlsSettings = TlsSettings()
    # SASL with DIGEST-MD5: the server proves that it knows the password, too
    sasl: UserSettings = UserSettings()
    # ZooKeeper's own scheme: the password itself is sent, and a wrong one is another user, not a refusal
    digest: UserSettings = UserSettings()


class SaslSettings(Table, frozen=True, kw_only=True):
    """`[brokers.sasl]`: our name and password, with `SASL_PLAINTEXT` and `SASL_SSL`."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: Text | None = None
    # a file that holds the password, or the name of an environment variable; never the password itself
    password_file: Text | None = None
    password_env: Text | None = None


class BrokersSettings(Table, frozen=True, kw_only=True):
    """`[brokers]`: which of a broker's listeners to use, and how. What belongs together, `network/security` checks."""

    # Kafka's names
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    # needed where a broker has several listeners of that protocol and none is named like it
    listener: ListenerName | None = None
    tls: TlsSettings = TlsSettings()
    sasl: SaslSettings = SaslSettings()

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")
