"""Messages between the daemon and its Spark worker: one JSON object per line, commands down, events up.

Both sides come from the same installation, so messages have no versions. Records are not sent this way: Spark's tasks
fetch them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer.records.checksums import Contents
from kzconsumer.registry.claim_record import Spans
from kzconsumer.sinks.interface import RangeData, Rejected
from kzconsumer_spark.worker_protocol.column_options import Columns
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka


class BatchRange(msgspec.Struct, frozen=True, kw_only=True):
    """One range of a batch. Tasks fetch its `spans`: all of it but offsets that the log has lost.

    `records` is the number of their offsets, without those of `left_out`; once they are read, that of their records.
    `left_out`, `leader_epoch` and `weight` are those of `RangeData`.
    """

    topic: str
    partition: int
    first: int
    until: int
    incarnation: int
    epoch: int
    records: int
    spans: tuple[OffsetRange, ...] = ()
    leader_epoch: int = -1
    left_out: Spans = ()
    weight: float = 0.0

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.first, self.until)

    @classmethod
    def of(cls, part: RangeData) -> BatchRange:
        return cls(
            topic=part.topic,
            partition=part.partition,
            first=part.first,
            until=part.until,
            incarnation=part.incarnation,
            epoch=part.epoch,
            records=part.records,
            spans=part.spans,
            leader_epoch=part.leader_epoch,
            left_out=part.left_out,
            weight=part.weight,
        )


class ToFiles(msgspec.Struct, frozen=True, kw_only=True, tag="files"):
    """Publish ranges as files of `format` at `path`, a directory or a URI of an object store.

    `store_options` say how the store is reached.
    """

    path: str
    store_options: Mapping[str, str] = {}
    format: Literal["parquet", "orc", "json", "csv"] = "parquet"
    partition_by: tuple[str, ...] = ()
    write_options: Mapping[str, str] = {}

    @property
    def described(self) -> str:
        """For errors and reports, here and below."""
        return f"{self.format} files in {self.path}"


class ToDelta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """Commit ranges to the Delta table at `path`. `scope` stands for the group, once the daemon has found it.

    `former_scope` stood for it while the cluster had no id; empty if it has none. `store_options`: see `ToFiles`.
    """

    path: str
    store_options: Mapping[str, str] = {}
    partition_by: tuple[str, ...] = ()
    write_options: Mapping[str, str] = {}
    scope: str = ""
    former_scope: str = ""

    @property
    def described(self) -> str:
        return f"Delta table {self.path}"

    @property
    def files(self) -> ToFiles:
        """The files that the table consists of."""
        return ToFiles(path=self.path, partition_by=self.partition_by, write_options=self.write_options)


class ToIceberg(msgspec.Struct, frozen=True, kw_only=True, tag="iceberg"):
    """Commit ranges to `table` ("namespace.name") of a catalog. The scopes: see `ToDelta`; `uuid` is the table's.

    `catalog` is a name that `pyiceberg` knows, which adds `catalog_options` to what is configured of it.
    """

    table: str
    catalog: str = "default"
    catalog_options: Mapping[str, str] = {}
    partition_by: tuple[str, ...] = ()
    write_options: Mapping[str, str] = {}
    scope: str = ""
    former_scope: str = ""
    uuid: str = ""

    @property
    def described(self) -> str:
        return f"Iceberg table {self.table} of catalog {self.catalog}"

    @property
    def files(self) -> ToFiles:
        """The files that the table consists of."""
        return ToFiles(path="", partition_by=self.partition_by, write_options=self.write_options)


class ToJdbc(msgspec.Struct, frozen=True, kw_only=True, tag="jdbc"):
    """Insert ranges into a table. It says where the password is, never the password itself.

    `owner_id` is the group's in the table's ledger, once the daemon has marked it.
    """

    url: str
    table: str
    user: str
    password_file: str | None = None
    password_env: str | None = None
    unique_key: tuple[str, ...] = ()
    write_options: Mapping[str, str] = {}
    owner_id: str = ""

    @property
    def described(self) -> str:
        return f"table {self.table} at {self.url.removeprefix('jdbc:')}"


class ToFunction(msgspec.Struct, frozen=True, kw_only=True, tag="function"):
    """Call the function that `function` ("module:function") names."""

    function: str

    @property
    def described(self) -> str:
        return f"function {self.function}"


To: TypeAlias = ToFiles | ToDelta | ToIceberg | ToJdbc | ToFunction


class StartWorker(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The first command: how to build the session, what to do with batches, the number of the first one to come."""

    scratch: str
    master: str
    conf: dict[str, str]
    destination: To
    next_batch: int
    safe_until: float
    columns: Columns = Columns()
    name: str = "kzconsumer"  # of the application and its query, for Spark's pages
    ui: bool | int = False
    event_log: str | None = None  # a URI
    scope: str = ""  # of a function's tokens
    kafka: Kafka | None = None  # None for a preview, which fetches nothing
    log_level: str = "info"
    log_format: str = "auto"


class LeaseRenewal(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The daemon lives; `safe_until` (seconds of `kzconsumer.clock`) is the lease as it is now."""

    safe_until: float


class RunBatch(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """Write these ranges. Numbers go up by one; a number that failed may be sent again.

    Of a trial nothing is published, and nothing stays. `steps` are those that are recorded as done, by the member
    that planned the range of a replay or by a failed attempt. `follows`: see `kzconsumer.sinks.interface.Batch`.
    `rate_limit`: that of `[fetch]`, at this attempt.
    """

    number: int
    ranges: tuple[BatchRange, ...]
    is_replay: bool = False
    is_trial: bool = False
    steps: tuple[str, ...] = ()
    follows: tuple[RangeIdentity, ...] = ()
    rate_limit: int | None = None


class Recorded(msgspec.Struct, frozen=True, kw_only=True, tag="recorded"):
    """The answer to a StepDone or RangesRead: it is stored, or why not."""

    error: str | None = None


class StopWorker(msgspec.Struct, frozen=True, tag="stop"):
    """Stop Spark and exit. Only sent between batches."""


Command: TypeAlias = StartWorker | LeaseRenewal | RunBatch | Recorded | StopWorker


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The session is up and the query waits for its first batch. `ui`: the URL of Spark's own pages.

    `stages` has the seconds of each part of the start, in their order.
    """

    application: str
    ui: str | None = None
    stages: Mapping[str, float] = {}


class QueryProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """What Spark reports of the last batch of its query, as `StreamingQuery.lastProgress`. Needs no answer."""

    query: str | None
    run: str
    batch_id: int
    timestamp: str
    input_rows: int
    input_rows_per_second: float
    processed_rows_per_second: float
    milliseconds: Mapping[str, int]


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """foreachBatch returned: the batch is durable. `published` and `present` count ranges by who put them there."""

    number: int
    rows: int
    published: int
    present: int
    seconds: float


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The batch failed or, without a number, the worker, which ends; `error` is one line, the rest is in the log.

    `rejected`: these records cannot be written, and nothing of their ranges was. `refused`: what is in the records is
    why, and which are is unknown. `settings`: it is a fault of the
    settings, as a ConfigError has it; trying again changes nothing. `outage`: brokers did not answer; trying again
    is all that can be done. `corrupt`: a batch at its first offset cannot be used, of a part that ends with it.
    `lacks`: the destination lacks this range, and ends at `ends`
    (`kzconsumer.errors.DestinationWentBackError`).
    """

    number: int | None
    error: str
    rejected: tuple[Rejected, ...] = ()
    refused: bool = False
    settings: bool = False
    outage: bool = False
    corrupt: OffsetRange | None = None
    lacks: RangeIdentity | None = None
    ends: int | None = None


class StepDone(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """A step of the batch in hand is done; the worker waits for the answer, Recorded."""

    number: int
    step: str


class RangesRead(msgspec.Struct, frozen=True, kw_only=True, tag="read"):
    """Executors have read the batch in hand: of each of its ranges what they found, None for one without offsets.

    Nothing is published before the answer, Recorded.
    """

    number: int
    contents: tuple[Contents | None, ...]


Event: TypeAlias = Ready | QueryProgress | Done | Failed | StepDone | RangesRead

_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(message: Command | Event) -> bytes:
    """One line, newline included."""
    return msgspec.json.encode(message) + b"\n"


def decode_command(line: bytes) -> Command:
    return _commands.decode(line)


def decode_event(line: bytes) -> Event:
    return _events.decode(line)


class PreviewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The standard input of the preview process."""

    start: StartWorker
    files: tuple[str, ...]
    """Parquet files of the records, as `kzconsumer_files.parquet.record_table` has them."""
