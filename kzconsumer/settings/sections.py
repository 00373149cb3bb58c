"""The tables of the group's file that concern no connection: frozen structs with units and defaults.

Durations become seconds, sizes become bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kzconsumer.model import MOST_STREAMS, TopicPartition
from kzconsumer.settings.quantities import ByteSize, Duration, PositiveDuration
from kzconsumer.settings.tables import Table
from kzconsumer.settings.topic_filter import Blacklist, TopicFilter, Whitelist
from kzconsumer.settings.values import (
    AtLeastOne,
    FetchSize,
    Listen,
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
)


class GroupSettings(Table, frozen=True, kw_only=True):
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


class SubscriptionSettings(Table, frozen=True, kw_only=True):
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


class OffsetsSettings(Table, frozen=True, kw_only=True):
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


class FetchSettings(Table, frozen=True, kw_only=True):
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


class BatchSettings(Table, frozen=True, kw_only=True):
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


class SinkSettings(Table, frozen=True, kw_only=True):
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


class RejectedSettings(Table, frozen=True, kw_only=True):
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


class StopSettings(Table, frozen=True, kw_only=True):
    """`[stop]`: leaving."""

    # for all of it: let the running batch end, commit, leave the group. A second signal does not wait
    deadline: PositiveDuration = 30.0


class ServiceSettings(Table, frozen=True, kw_only=True):
    """`[service]`: under a service manager (systemd) that wants signs of life."""

    # there is something to read, and nothing has been fetched or processed for so long: no more signs of life, so that
    # the daemon is started anew. Longer than the sink ever takes for one batch
    stalled_after: PositiveDuration = 30 * 60.0
    # a file that a second daemon of this instance finds locked, and ends; the unit has one in its RuntimeDirectory
    lock: Text | None = None


class StatusSettings(Table, frozen=True, kw_only=True):
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


class LogSettings(Table, frozen=True, kw_only=True):
    """`[log]`: what is told on standard error, or in systemd's journal."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    # auto is console on a terminal, json otherwise; journald speaks the journal's own protocol, with fields
    format: Literal["auto", "console", "json", "journald"] = "auto"
    # between two lines that tell what is owned, how far behind and how fast
    progress_interval: PositiveDuration = 60.0
