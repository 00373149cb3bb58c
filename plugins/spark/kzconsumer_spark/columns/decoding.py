"""Decodes key and value of a DataFrame: by Spark itself (text, JSON) or in its Python workers (Avro, protobuf).

This is one narrow transformation: records keep their order and their tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from kzconsumer_spark.columns import schema_files
from kzconsumer_spark.columns.avro_and_protobuf import (
    AvroDecoder,
    AvroSchema,
    Decoder,
    Read,
    Unsupported,
    decode_column,
    for_spark,
    schema_id,
)
from kzconsumer_spark.columns.json_reading import JsonReading, require_readable
from kzconsumer_spark.columns.schema_registry import NotRegistered, Registry, RegistryError
from kzconsumer_spark.worker_protocol.column_options import REGISTRY, Columns, Field, FieldOptions

_DECODED = "__kz_decoded"
MOST_IDS = 1000


def error_of(field: Field) -> str:
    """The name of the column with the reason why the field is bad, or null."""
    return f"__kz_{field}_error"


def raw_of(field: Field) -> str:
    """The name of the column with the field's bytes, if requested."""
    return f"__kz_{field}_raw"


class Decoding:
    """The decoders of key and value, according to the settings."""

    def __init__(self, columns: Columns) -> None:
        """Raises OSError, Unsupported (of files), RegistryError."""
        self._fields = columns.fields
        self._registry = Registry(columns.registry) if columns.registry is not None else None
        self._fixed: dict[Field, Decoder] = {}
        self._readers: dict[Field, AvroSchema] = {}
        self._seen: dict[Field, set[int]] = {}
        self._json: dict[Field, JsonReading] = {}
        for name, options in self._fields.items():
            if options.format == "protobuf":
                self._fixed[name] = schema_files.protobuf_decoder(options)
            elif options.format in ("avro", "confluent-avro") and options.schema is not None:
                schema = self._schema(options)
                self._readers[name] = schema
                if options.format == "avro":
                    self._fixed[name] = AvroDecoder({None: schema}, None)
            elif options.format == "json":
                self._json[name] = JsonReading(_struct(schema_files.ddl(options)))
            if options.format == "confluent-avro":
                self._seen[name] = set()

    @property
    def known_before(self) -> bool:
        """Whether the types of the columns are known before the first record."""
        return all(name in self._readers for name in self._seen)

    def decoders(self, frame: DataFrame | None) -> dict[Field, Decoder]:
        """For these records (None: for none): with confluent-avro the ids in them are looked up first, by a Spark job.

        Raises RegistryError, Unsupported.
        """
        made = dict(self._fixed)
        for name in self._seen:
            made[name] = self._by_ids(name, _ids(frame, name) if frame is not None else set())
        return made

    def decode(self, frame: DataFrame, decoders: Mapping[Field, Decoder], raw: Collection[Field]) -> DataFrame:
        """The frame with each field decoded, or null and the reason in `error_of(field)`; with `raw_of(field)`."""
        for name in self._fields:
            if name in raw:
                frame = frame.withColumn(raw_of(name), F.col(name))
            python = decoders.get(name)
            frame = _in_python(frame, name, python) if python else _natively(frame, name, self._json.get(name))
        return frame

    def _by_ids(self, name: Field, ids: set[int]) -> AvroDecoder:
        assert self._registry is not None
        writers: dict[int | None, AvroSchema] = {}
        for number in sorted(self._seen[name] | ids):
            try:
                writers[number] = self._registry.by_id(number)
            except NotRegistered:
                continue  # a bad record; the id is requested again with the next batch that has it
        new = writers.keys() - self._seen[name]
        if name in self._readers and new:
            # The subject's newest version comes before the first record that is written with it.
            self._readers[name] = self._schema(self._fields[name])
        self._seen[name].update(number for number in writers if number is not None)
        return AvroDecoder(writers, self._readers.get(name))

    def _schema(self, options: FieldOptions) -> AvroSchema:
        assert options.schema is not None
        if not options.schema.startswith(REGISTRY):
            return schema_files.avro_schema(options)
        assert self._registry is not None
        return self._registry.latest(options.schema.removeprefix(REGISTRY))


def _ids(frame: DataFrame, name: Field) -> set[int]:
    heads = frame.selectExpr(f"substring({name}, 1, 5) AS head").where("length(head) = 5 AND startswith(head, X'00')")
    found = {schema_id(bytes(row.head)) for row in heads.distinct().limit(MOST_IDS + 1).collect()}
    if len(found) > MOST_IDS:
        raise RegistryError(f"{name}: more than {MOST_IDS} schema ids in one batch: this is not what confluent-avro is")
    return found


def _struct(ddl: str) -> StructType:
    try:
        found = StructType.fromDDL(ddl)
    except ParseException as error:
        raise Unsupported(" ".join(str(error).split("== SQL ==")[0].split())) from error
    if not isinstance(found, StructType):
        raise Unsupported("the DDL is not a list of columns")
    require_readable(found)
    return found


def _in_python(frame: DataFrame, name: Field, decoder: Decoder) -> DataFrame:
    value = from_arrow_type(for_spark(decoder.type), prefer_timestamp_ntz=True)
    pair = StructType([StructField("value", value), StructField("reason", StringType())])
    # Declared nondeterministic: otherwise Spark would push it into filters and evaluate it twice.
    decode = F.arrow_udf(_reading(decoder), pair).asNondeterministic()  # type: ignore[attr-defined] # of Spark 4.1 on
    decoded = frame.withColumn(_DECODED, decode(F.col(name)))
    parts = {name: F.col(_DECODED)["value"], error_of(name): F.col(_DECODED)["reason"]}
    return decoded.withColumns(parts).drop(_DECODED)


def _reading(decoder: Decoder) -> Callable[[pa.Array[Any]], pa.Array[Any]]:
    """The function for Spark's Python workers, called with columns of a few thousand values."""
    kept: list[Read] = []

    # Spark reads these annotations, and accepts this type only.
    def read(values: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        if not kept:
            kept.append(decoder.reader())
        return pa.StructArray.from_arrays(decode_column(values, kept[0], decoder.type), ["value", "reason"])

    return read


def _natively(frame: DataFrame, name: Field, json: JsonReading | None) -> DataFrame:
    """As text, or as JSON of a schema."""
    text = F.col(name).cast("string")
    error = F.when(F.col(name).isNotNull() & ~F.is_valid_utf8(text), F.lit("is not UTF-8"))
    frame = frame.withColumn(error_of(name), error)
    is_text = F.col(error_of(name)).isNull()
    if json is None:
        return frame.withColumn(name, F.when(is_text, text))
    found = json.read(frame, F.when(is_text, text))
    marked = found.frame.withColumn(error_of(name), F.coalesce(error_of(name), found.reason))
    return marked.withColumn(name, F.when(is_text, found.value)).drop(*found.used)
