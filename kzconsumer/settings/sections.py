"""The tables of the group's file (config/group.reference.toml), frozen; durations in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from kzconsumer.model import MOST_STREAMS, TopicPartition, Wants
from kzconsumer.settings.table_reader import ByteSize, PositiveDuration, Table
from kzconsumer.settings.value_readers import (
    AtLeastOne,
    BrokerAddress,
    Connect,
    Exclude,
    FetchSize,
    Include,
    Listen,
    ListenerName,
    ListText,
    Name,
    Partition,
    PluginName,
    RejectPolicy,
    Reset,
    StopAt,
    Text,
    Timeout,
    TopicFilter,
    TopicName,
    Topics,
    Wait,
    host_and_port,
    is_local,
)


class TlsSettings(Table, frozen=True, kw_only=True):
    """`[brokers.tls]`, `[zookeeper.tls]`: trusted authorities and our own certificate, as PEM files."""

    ca: Text | None = None
    certificate: Text | None = None
    key: Text | None = None
    key_password_file: Text | None = None
    key_password_env: Text | None = None
    verify_hostname: bool = True


class UserSettings(Table, frozen=True, kw_only=True):
    """`[zookeeper.digest]`, and the mechanisms of SASL with a password: user name and password."""

    username: Text | None = None
    password_file: Text | None = None
    password_env: Text | None = None


class KerberosSettings(UserSettings, frozen=True, kw_only=True):
    """The keys that `[zookeeper.sasl]` and `[brokers.sasl]` share."""

    mechanism: str | None = None
    principal: Text | None = None
    keytab: Text | None = None
    ticket_cache: Text | None = None
    service_name: Text = ""

    def faults(self) -> list[str]:
        """Keys that are for another mechanism."""
        used: dict[str, tuple[str, ...]] = {"GSSAPI": ("principal", "keytab", "ticket_cache", "service_name")}
        used["OAUTHBEARER"] = ("token_file", "token_command")
        mine, unset = self.mechanism if self.mechanism in used else "a password", type(self)()
        return [
            f"{key}: is for {mechanism}, but mechanism is {self.mechanism}"
            for mechanism, keys in {**used, "a password": ("username", "password_file", "password_env")}.items()
            for key in keys
            if self.mechanism is not None
            and mechanism != mine
            and getattr(self, key, None) != getattr(unset, key, None)
        ]


class ZooKeeperSaslSettings(KerberosSettings, frozen=True, kw_only=True):
    """`[zookeeper.sasl]`."""

    mechanism: Literal["DIGEST-MD5", "GSSAPI"] = "DIGEST-MD5"
    service_name: Text = "zookeeper"


class ZooKeeperSettings(Table, frozen=True, kw_only=True):
    """`[zookeeper]`; `zookeeper/credentials` checks that the keys fit together."""

    connect: Connect
    session_timeout: Timeout = 6.0
    secure: bool = False
    acl: Literal["open", "creator-writes", "creator-only"] = "open"
    tls: TlsSettings = TlsSettings()
    sasl: ZooKeeperSaslSettings = ZooKeeperSaslSettings()
    digest: UserSettings = UserSettings()


class SaslSettings(KerberosSettings, frozen=True, kw_only=True):
    """`[brokers.sasl]`: the identity for `SASL_PLAINTEXT` and `SASL_SSL`."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None = None
    service_name: Text = "kafka"
    token_file: Text | None = None
    token_command: tuple[Text, ...] = ()


class BrokersSettings(Table, frozen=True, kw_only=True):
    """`[brokers]`: where brokers are, and which of their listeners to use; `brokers/transport` checks the keys."""

    bootstrap: tuple[BrokerAddress, ...] = ()
    metadata_interval: PositiveDuration = 5.0
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    listener: ListenerName | None = None
    client_rack: Text | None = None
    tls: TlsSettings = TlsSettings()
    sasl: SaslSettings = SaslSettings()

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")


class GroupSettings(Table, frozen=True, kw_only=True):
    """`[group]`: which group, and how partitions are assigned."""

    id: Name
    assignor: PluginName = "range"
    unreadable_members: Literal["wait", "ignore"] = "wait"
    ownership: Literal["keep", "eager"] = "keep"
    reconcile_interval: PositiveDuration = 30.0
    unowned_alarm: PositiveDuration = 60.0
    revoke_deadline: PositiveDuration = 5.0
    consumer_id: Name | None = None


class SubscriptionSettings(Table, frozen=True, kw_only=True):
    """`[subscription]`: what to consume. The daemon requires it; an application names its topics itself."""

    foreign_terms: ClassVar[Mapping[str, str]] = {"whitelist": "include", "blacklist": "exclude"}

    topics: Topics = msgspec.field(default_factory=dict)
    include: ListText | None = None
    exclude: ListText | None = None
    streams: AtLeastOne = 1
    paused: tuple[Partition, ...] = ()
    stop_at: StopAt | None = None
    run: Name | None = None

    def __post_init__(self) -> None:
        if self.run is not None and self.stop_at is None:
            raise ValueError('run needs stop_at, such as "end"')
        if sum(self.topics.values()) > MOST_STREAMS or self.streams > MOST_STREAMS:
            raise ValueError(f"more than {MOST_STREAMS} streams: members regard such a registration as unreadable")

    @property
    def paused_partitions(self) -> frozenset[TopicPartition]:
        parts = (each.rpartition(":") for each in self.paused)
        return frozenset(TopicPartition(topic, int(number)) for topic, _, number in parts)

    @property
    def filter(self) -> TopicFilter | None:
        if self.include is not None:
            return Include(self.include)
        return Exclude(self.exclude) if self.exclude is not None else None


class OffsetsSettings(Table, frozen=True, kw_only=True):
    """`[offsets]`: where to begin, where to store offsets and how often."""

    reset: Reset = "smallest"
    truncated: Literal["fail", "continue"] = "fail"
    storage: Literal["zookeeper", "kafka"] = "zookeeper"
    dual_commit: bool = True
    commit_interval: PositiveDuration = 10.0
    most_unacknowledged: AtLeastOne = 100_000


class FetchSettings(Table, frozen=True, kw_only=True):
    """`[fetch]`: how records come from the brokers."""

    max_bytes: FetchSize = 1024 * 1024
    min_bytes: FetchSize = 1
    max_wait: Wait = 0.1
    queue_bytes: FetchSize = 8 * 1024 * 1024
    total_queue_bytes: Annotated[ByteSize, Meta(ge=1)] = 128 * 1024 * 1024
    response_bytes: FetchSize = 50 * 1024 * 1024
    largest_batch: FetchSize = 128 * 1024 * 1024
    largest_body: FetchSize = 256 * 1024 * 1024
    on_corrupt: Literal["fail", "skip", "quarantine"] = "fail"
    quarantine: Annotated[str, Meta(min_length=1)] | None = None
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    rate_limit: Annotated[ByteSize, Meta(ge=1)] | None = None
    request_timeout: Timeout = 30.0

    def __post_init__(self) -> None:
        if self.on_corrupt == "quarantine" and self.quarantine is None:
            raise ValueError('on_corrupt = "quarantine" needs the key quarantine, a directory')
        if self.on_corrupt != "quarantine" and self.quarantine is not None:
            raise ValueError('quarantine goes with on_corrupt = "quarantine": nothing would be written there')


class BatchSettings(Table, frozen=True, kw_only=True):
    """`[batch]`: when a sink's batch is complete; the first limit that is reached counts.

    Without `max_records` and `max_bytes` what the sink wants decides: see `most`.
    """

    max_records: AtLeastOne | None = None
    max_bytes: Annotated[ByteSize, Meta(ge=1)] | None = None
    max_time: PositiveDuration = 1.0
    min_records: AtLeastOne | None = None
    min_bytes: Annotated[ByteSize, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.min_records is not None and self.max_records is not None and self.min_records > self.max_records:
            raise ValueError("min_records, of one partition, is more than max_records, of the whole batch")
        if self.min_bytes is not None and self.max_bytes is not None and self.min_bytes > self.max_bytes:
            raise ValueError("min_bytes, of one partition, is more than max_bytes, of the whole batch")

    def most(self, wants: Wants) -> tuple[int, int]:
        """Records and bytes of a batch.

        Of what a sink fetches for itself, the member's memory holds nothing. There a batch of Spark's is large enough
        that its own cost (0.3 s of a processor) is small, and short enough to be written within seconds.
        """
        records, size = (2_000_000, 512 << 20) if wants == "ranges" else (500_000, 64 << 20)
        return self.max_records or max(records, self.min_records or 0), self.max_bytes or max(size, self.min_bytes or 0)


class SinkSettings(Table, frozen=True, kw_only=True):
    """`[sink]`: where records go. The daemon requires it; an application that iterates streams has none.

    `quarantine` may be given without its policy: `sink verify` looks there for ranges of former runs.
    """

    plugin: PluginName
    options: Mapping[str, object] = msgspec.field(default_factory=dict)
    on_batch_failure: Literal["stop", "quarantine"] = "stop"
    quarantine: Annotated[str, Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        if self.on_batch_failure == "quarantine" and self.quarantine is None:
            raise ValueError('on_batch_failure = "quarantine" needs the key quarantine, a directory')


class RejectedSettings(Table, frozen=True, kw_only=True):
    """`[rejected]`: what happens to records that the application, or the sink's function, rejects."""

    policy: RejectPolicy = "fail"
    classes: Mapping[str, RejectPolicy] = msgspec.field(default_factory=dict)
    topic: TopicName | None = None
    directory: Text | None = None
    file_bytes: FetchSize = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.keeps and self.topic is None and self.directory is None:
            raise ValueError('"dead-letter" needs the key topic, or directory')
        for key in ("topic", "directory"):
            if not self.keeps and getattr(self, key) is not None:
                raise ValueError(
                    f'{key} goes with "dead-letter", as policy or of a class: nothing would be written there'
                )

    @property
    def keeps(self) -> bool:
        return "dead-letter" in (self.policy, *self.classes.values())

    def of(self, error_class: str) -> RejectPolicy:
        return self.classes.get(error_class, self.policy)


class StopSettings(Table, frozen=True, kw_only=True):
    """`[stop]`: shutdown."""

    deadline: PositiveDuration = 30.0


class ServiceSettings(Table, frozen=True, kw_only=True):
    """`[service]`: stall detection for a service manager, and the lock of the instance."""

    stalled_after: PositiveDuration = 30 * 60.0
    lock: Text | None = None


class StatusSettings(Table, frozen=True, kw_only=True):
    """`[status]`: a page, metrics, health and JSON over HTTP, read only."""

    listen: Listen | None = None
    token_file: Text | None = None
    token_env: Text | None = None
    stalled_after: PositiveDuration = 60.0

    def __post_init__(self) -> None:
        if self.listen is not None and not self.guarded and not is_local(self.listen):
            raise ValueError(f"listen = {self.listen!r} is open to other machines: token_file or token_env is required")

    @property
    def guarded(self) -> bool:
        return self.token_file is not None or self.token_env is not None

    @property
    def published(self) -> str:
        """The address that other members show as a link; empty unless it names a host that other machines reach."""
        if self.listen is None or is_local(self.listen):
            return ""
        host, port = host_and_port(self.listen)
        return self.listen if port and host not in ("0.0.0.0", "::") else ""


class LogSettings(Table, frozen=True, kw_only=True):
    """`[log]`: the log on standard error, or in systemd's journal."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json", "journald"] = "auto"
    progress_interval: PositiveDuration = 60.0
