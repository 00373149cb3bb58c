"""The settings of one member: frozen structs, one for each table of the group's file, with units and defaults.

Owns nothing; `cli` loads the file, `daemon` and applications read the result. Durations become seconds, sizes bytes.
Every key is also in `config/group.reference.toml` (a test compares the two). It opens no connection and loads no
plugin: a plugin's name is checked where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kzconsumer.errors import ConfigError
from kzconsumer.model import MOST_STREAMS, TopicPartition
from kzconsumer.options import ByteSize, Duration, PositiveDuration, read_table, tables_of
from kzconsumer.setting_layers import Layers, read_layers
from kzconsumer.setting_types import (
    AtLeastOne,
    Connect,
    FetchSize,
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
    TopicName,
    Topics,
    is_local,
    read_name,
)
from kzconsumer.topic_filter import Blacklist, TopicFilter, Whitelist


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the file."""


class TlsSettings(_Table, frozen=True, kw_only=True):
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


class UserSettings(_Table, frozen=True, kw_only=True):
    """`[zookeeper.sasl]` and `[zookeeper.digest]`: who we are; nobody where no name is given."""

    username: Text | None = None
    # a file that holds the password, or the name of an environment variable; never the password itself
    password_file: Text | None = None
    password_env: Text | None = None


class ZooKeeperSettings(_Table, frozen=True, kw_only=True):
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


class SaslSettings(_Table, frozen=True, kw_only=True):
    """`[brokers.sasl]`: our name and password, with `SASL_PLAINTEXT` and `SASL_SSL`."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: Text | None = None
    # a file that holds the password, or the name of an environment variable; never the password itself
    password_file: Text | None = None
    password_env: Text | None = None


class BrokersSettings(_Table, frozen=True, kw_only=True):
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


class GroupSettings(_Table, frozen=True, kw_only=True):
    """`[group]`: which group, and how it divides partitions."""

    id: Name
    # a plugin of `kzconsumer.assignors`; all members of a group must run the same
    assignor: PluginName = "range"
    # a member whose registration nobody can read: wait until it leaves (all members must compute the same), or ignore
    unreadable_members: Literal["wait", "ignore"] = "wait"
    # when the assignment changes: keep reading what stays ours, or give all back first, as the original consumer does
    ownership: Literal["keep", "eager"] = "keep"
    # between two comparisons of what should be owned with what ZooKeeper shows, beside all that events tell
    reconcile_interval: PositiveDuration = 30.0
    # how long a partition of the group may be without owner until it is told as an error
    unowned_alarm: PositiveDuration = 60.0
    # how long a partition that must go to another member waits for the work in hand to end; beside original members
    # 3.5 s at most, since they try for 8 s and then give up
    revoke_deadline: PositiveDuration = 5.0
    # for tests only: replaces the generated part of the member's id, which must never be used by two members
    consumer_id: Name | None = None


class SubscriptionSettings(_Table, frozen=True, kw_only=True):
    """`[subscription]`: what to consume. The daemon needs it; an application names its topics itself."""

    # topic -> number of streams; each stream is consumed one record or batch after the other
    topics: Topics = msgspec.field(default_factory=dict)
    # instead of topics: all that match, or all that do not match, a regular expression; also those made later
    whitelist: ListText | None = None
    blacklist: ListText | None = None
    # of a whitelist or blacklist, shared by all its topics
    streams: AtLeastOne = 1
    # owned and not consumed: their records wait in the log. topic:partition
    paused: tuple[Partition, ...] = ()
    # read up to there, and leave: to the ends that the logs have when the group's run begins, or up to the first record
    # of that time or later. Fixed once for all members of the run
    stop_at: StopAt | None = None
    # of stop_at: which run this start belongs to, as the scheduler names it
    run: Name | None = None

    def __post_init__(self) -> None:
        if self.run is not None and self.stop_at is None:
            raise ValueError("run goes with stop_at: only what ends has runs")
        if sum(self.topics.values()) > MOST_STREAMS or self.streams > MOST_STREAMS:
            raise ValueError(f"more than {MOST_STREAMS} streams: members take such a registration for unreadable")

    @property
    def paused_partitions(self) -> frozenset[TopicPartition]:
        parts = (each.rpartition(":") for each in self.paused)
        return frozenset(TopicPartition(topic, int(number)) for topic, _, number in parts)

    @property
    def filter(self) -> TopicFilter | None:
        if self.whitelist is not None:
            return Whitelist(self.whitelist)
        return Blacklist(self.blacklist) if self.blacklist is not None else None


class OffsetsSettings(_Table, frozen=True, kw_only=True):
    """`[offsets]`: where to start, and how often to store how far we are."""

    # for a partition without a stored offset, or whose stored offset is no longer in the log: first record, only what
    # comes, or stop with an error. The original's default is largest; ours loses nothing
    reset: Reset = "smallest"
    # with a replayable sink, where the log ends before what was consumed (an unclean leader election): stop with an
    # error, or go on at its end, under a new reset epoch. Other members do as `reset` says
    truncated: Literal["fail", "continue"] = "fail"
    # where they are stored. kafka: with the group's coordinator, and with dual_commit in ZooKeeper too, where that is
    # fenced; then the larger of the two counts, as for the original. A replayable sink needs ZooKeeper's: there these
    # count, and the coordinator has a copy
    storage: Literal["zookeeper", "kafka"] = "zookeeper"
    dual_commit: bool = True
    # between two commits of what is processed (with a sink: of batches the sink has made durable)
    commit_interval: PositiveDuration = 10.0
    # of an application that acknowledges by itself: with so many records of one stream handed out and not acknowledged,
    # more or less, the stream waits
    most_unacknowledged: AtLeastOne = 100_000

    @property
    def kept_in(self) -> Literal["zookeeper", "kafka", "both"]:
        """`storage` and `dual_commit` as one word."""
        return "both" if self.storage == "kafka" and self.dual_commit else self.storage


class FetchSettings(_Table, frozen=True, kw_only=True):
    """`[fetch]`: how records come from the brokers."""

    # most bytes of one partition in one response; a larger record set still comes, alone
    max_bytes: FetchSize = 1024 * 1024
    # a broker with less to send waits for more, at most max_wait
    min_bytes: FetchSize = 1
    max_wait: Duration = 0.1
    # records fetched and not yet taken, decompressed, for each stream; a full queue pauses its own partitions only
    queue_bytes: FetchSize = 8 * 1024 * 1024
    # the same for all streams together; a stream with nothing queued is fetched for all the same
    total_queue_bytes: Annotated[ByteSize, Meta(ge=1)] = 128 * 1024 * 1024
    # most bytes of one response, all partitions together (brokers before 0.10.1 do not know this limit)
    response_bytes: FetchSize = 50 * 1024 * 1024
    # brokers before 0.10.1 cut a larger batch short: it is asked for again with up to this size, then `on_corrupt` says
    # what to do
    largest_batch: FetchSize = 128 * 1024 * 1024
    # a batch that decompresses to more counts as corrupt
    largest_body: FetchSize = 256 * 1024 * 1024
    # a batch that is still corrupt when fetched again: stop with an error, jump over it (the records are lost, and the
    # log says so), or jump over it and keep its bytes in the directory `quarantine`
    on_corrupt: Literal["fail", "skip", "quarantine"] = "fail"
    quarantine: Annotated[str, Meta(min_length=1)] | None = None
    # read_committed: nothing of aborted transactions, and nothing behind one still open. The original knows none: it
    # reads everything. Brokers before 0.11 have no transactions, so that both are the same there
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    # most bytes a second from all brokers together, as they are sent; no limit when left out
    rate_limit: Annotated[ByteSize, Meta(ge=1)] | None = None
    # for connecting to a broker, and for each of its answers
    request_timeout: PositiveDuration = 30.0

    def __post_init__(self) -> None:
        if self.on_corrupt == "quarantine" and self.quarantine is None:
            raise ValueError('on_corrupt = "quarantine" needs the key quarantine, a directory')


class BatchSettings(_Table, frozen=True, kw_only=True):
    """`[batch]`: when what a sink gets is cut; the first limit that is reached counts."""

    max_records: AtLeastOne = 500_000
    # of decoded data
    max_bytes: Annotated[ByteSize, Meta(ge=1)] = 64 * 1024 * 1024
    # how long a record may wait for its batch
    max_time: PositiveDuration = 1.0
    # a partition with less of both (or of the one that is given) stays behind when a batch is full, up to max_time
    min_records: AtLeastOne | None = None
    min_bytes: Annotated[ByteSize, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        if self.min_records is not None and self.min_records > self.max_records:
            raise ValueError("min_records, of one partition, is more than max_records, of the whole batch")
        if self.min_bytes is not None and self.min_bytes > self.max_bytes:
            raise ValueError("min_bytes, of one partition, is more than max_bytes, of the whole batch")


class SinkSettings(_Table, frozen=True, kw_only=True):
    """`[sink]`: where records go. The daemon needs it; an application that iterates its streams has none."""

    # a plugin of `kzconsumer.sinks`
    plugin: PluginName
    # the plugin's own table, checked by the plugin
    options: Mapping[str, object] = msgspec.field(default_factory=dict)
    # what to do about a batch that the sink cannot write: stop with nothing of it committed, or try its ranges one by
    # one, keep those that fail in the directory `quarantine`, and go on
    on_batch_failure: Literal["stop", "quarantine"] = "stop"
    quarantine: Annotated[str, Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        if self.on_batch_failure == "quarantine" and self.quarantine is None:
            raise ValueError('on_batch_failure = "quarantine" needs the key quarantine, a directory')


class RejectedSettings(_Table, frozen=True, kw_only=True):
    """`[rejected]`: what becomes of records that the application, or the sink's function, cannot use."""

    # of every class of errors that `classes` does not name: stop with an error, go on without the record (it is lost,
    # and the log says so), or keep it as a dead letter first
    policy: RejectPolicy = "fail"
    # by class, as the application names them
    classes: Mapping[str, RejectPolicy] = msgspec.field(default_factory=dict)
    # where dead letters go: a topic of the same cluster, or a directory
    topic: TopicName | None = None
    directory: Text | None = None
    # of the directory: a file that has reached it is followed by another one
    file_bytes: FetchSize = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.keeps and self.topic is None and self.directory is None:
            raise ValueError('"dead-letter" needs the key topic, or directory')

    @property
    def keeps(self) -> bool:
        return "dead-letter" in (self.policy, *self.classes.values())

    def of(self, error_class: str) -> RejectPolicy:
        return self.classes.get(error_class, self.policy)


class StopSettings(_Table, frozen=True, kw_only=True):
    """`[stop]`: leaving."""

    # for all of it: let the running batch end, commit, leave the group. A second signal does not wait
    deadline: PositiveDuration = 30.0


class ServiceSettings(_Table, frozen=True, kw_only=True):
    """`[service]`: under a service manager (systemd) that wants signs of life."""

    # there is something to read, and nothing has been fetched or processed for so long: no more signs of life, so that
    # the daemon is started anew. Longer than the sink ever takes for one batch
    stalled_after: PositiveDuration = 30 * 60.0
    # a file that a second daemon of this instance finds locked, and ends; the unit has one in its RuntimeDirectory
    lock: Text | None = None


class StatusSettings(_Table, frozen=True, kw_only=True):
    """`[status]`: a page, metrics, health and JSON over HTTP; nothing can be changed there."""

    # host:port, or unix:/path of a socket; nothing is served when left out. Port 0 is any free one, told in the log
    listen: Listen | None = None
    # what every request has to bring as a bearer token: a file that holds it, or the name of an environment variable.
    # Needed to listen beyond this machine
    token_file: Text | None = None
    token_env: Text | None = None
    # a partition that is behind and has not advanced for so long counts as stalled
    stalled_after: PositiveDuration = 60.0

    def __post_init__(self) -> None:
        if self.listen is not None and not self.guarded and not is_local(self.listen):
            raise ValueError(f"listen = {self.listen!r} is open to other machines: give token_file or token_env, too")

    @property
    def guarded(self) -> bool:
        return self.token_file is not None or self.token_env is not None


class LogSettings(_Table, frozen=True, kw_only=True):
    """`[log]`: what is told on standard error, or in systemd's journal."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    # auto is console on a terminal, json otherwise; journald speaks the journal's own protocol, with fields
    format: Literal["auto", "console", "json", "journald"] = "auto"
    # between two lines that tell what is owned, how far behind and how fast
    progress_interval: PositiveDuration = 60.0


class _File(_Table, frozen=True, kw_only=True):
    """The tables of the file; those without a required key may be left out."""

    zookeeper: ZooKeeperSettings
    brokers: BrokersSettings = BrokersSettings()
    group: GroupSettings
    subscription: SubscriptionSettings = SubscriptionSettings()
    offsets: OffsetsSettings = OffsetsSettings()
    fetch: FetchSettings = FetchSettings()
    batch: BatchSettings = BatchSettings()
    sink: SinkSettings | None = None
    rejected: RejectedSettings = RejectedSettings()
    stop: StopSettings = StopSettings()
    service: ServiceSettings = ServiceSettings()
    status: StatusSettings = StatusSettings()
    log: LogSettings = LogSettings()


class Settings(_File, frozen=True, kw_only=True):
    """All settings of one member, and where they came from.

    Raises ConfigError, one line per fault, from each way of making one.
    """

    # begins every line about a fault
    source: str = "settings"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Settings:
        """Read a TOML file, with the vendor's files under it, and drop-ins and environment variables over it."""
        return cls.of(layers_of(path))

    @classmethod
    def of(cls, layers: Layers) -> Settings:
        with layers.named():
            return cls.from_dict(layers.tables, source=layers.source)

    @classmethod
    def from_dict(cls, tables: Mapping[str, object], *, source: str = "settings") -> Settings:
        """Take the file's tables as mappings; values are written as in the file (`"10s"`, `"1MiB"`)."""
        read = read_table(tables, _File, f"{source}:")
        return cls(**{name: getattr(read, name) for name in _File.__struct_fields__}, source=source)

    def in_run(self, name: str) -> Settings:
        """These settings for the run of that name. Raises ConfigError for what `[subscription] run` would not take."""
        where = "--run"
        try:
            return msgspec.structs.replace(
                self, subscription=msgspec.structs.replace(self.subscription, run=read_name(name))
            )
        except ValueError as error:
            raise ConfigError([f"{self.source}: {where} {name}: {error}"]) from None

    def require_subscription(self) -> SubscriptionSettings:
        """What to consume; raises ConfigError when the file does not say it, or says it in two ways."""
        given = [name for name in ("topics", "whitelist", "blacklist") if getattr(self.subscription, name)]
        if not given:
            raise ConfigError([f"{self.source}: [subscription] topics: missing (or whitelist, or blacklist)"])
        if len(given) > 1:
            fault = f"{self.source}: [subscription] {given[1]}: cannot be given together with {given[0]}"
            raise ConfigError([fault])
        letters = self.rejected.topic
        if letters is not None and self.subscribes(letters):
            fault = f"{self.source}: [rejected] topic: {letters} is consumed by this very group, for ever"
            raise ConfigError([fault])
        return self.subscription

    def subscribes(self, topic: str) -> bool:
        """Whether the file's subscription has a topic."""
        wanted = self.subscription
        return topic in wanted.topics or (wanted.filter is not None and wanted.filter.allows(topic))

    def require_sink(self) -> SinkSettings:
        """The sink to run; raises ConfigError when the file names none."""
        if self.sink is None:
            raise ConfigError([f"{self.source}: [sink] plugin: missing"])
        return self.sink

    def require_daemon(self) -> SinkSettings:
        """The sink to run; raises ConfigError when the file does not say what to consume or where to put it."""
        faults: list[str] = []
        for require in (self.require_subscription, self.require_sink):
            try:
                require()
            except ConfigError as error:
                faults += error.faults
        if faults:
            raise ConfigError(faults)
        return self.require_sink()


def layers_of(path: str | os.PathLike[str], flags: Sequence[str] = ()) -> Layers:
    """What `Settings.of` takes; a flag is `table.key=value`. Raises ConfigError for what is not TOML."""
    return read_layers(path, frozenset(tables_of(_File)), flags=flags)
