"""Avro, and Avro in Confluent's frame (a zero byte, four bytes of schema id), decoded by fastavro.

A decoder is built for each batch with the schemas of all ids in it: executors ask no registry.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from functools import reduce
from typing import Any

import pyarrow as pa

from kzconsumer_spark.columns.avro_types import Avro, Unsupported, arrow_type, merged, without_times
from kzconsumer_spark.columns.decoder import BadValue, Read

_FRAME = struct.Struct(">bi")


class AvroSchema:
    """A parsed schema with the named schemas it refers to. Raises Unsupported if fastavro or a column refuses it."""

    def __init__(self, schema: Avro, referred: tuple[Avro, ...] = ()) -> None:
        import fastavro

        named: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        try:
            for each in referred:
                fastavro.parse_schema(each, named_schemas=named)
                fastavro.parse_schema(without_times(each), named_schemas=plain)
            self.type = arrow_type(fastavro.parse_schema(schema, named_schemas=named, expand=True))
            self.parsed = fastavro.parse_schema(without_times(schema), named_schemas=plain)
        except Unsupported:
            raise
        except Exception as error:  # its own, KeyError and TypeError, as the schema has it
            raise Unsupported(f"not an Avro schema: {type(error).__name__}: {error}") from error


class AvroDecoder:
    """`writers` are the schemas by id; without frame there is one, of id None. Values are resolved to `reader`.

    Without `reader`, columns are the union by name of all writers' fields. Raises Unsupported when two of them have a
    field of one name that no column can hold.
    """

    def __init__(self, writers: Mapping[int | None, AvroSchema], reader: AvroSchema | None) -> None:
        self._writers = {number: schema.parsed for number, schema in writers.items()}
        self._reader = reader.parsed if reader else None
        types = [writers[number].type for number in sorted(writers, key=lambda number: number or 0)]
        nothing: pa.DataType = pa.struct([])  # before the first schema: `value.*` is no column then
        self.type: pa.DataType = reader.type if reader else reduce(merged, types[1:], (types or [nothing])[0])

    def reader(self) -> Read:
        from fastavro import schemaless_reader

        writers, reader = self._writers, self._reader
        framed = None not in writers

        def read(data: bytes) -> object:
            stream = io.BytesIO(data)
            number = None
            if framed:
                number = schema_id(stream.read(5))
            if number not in writers:
                raise BadValue(f"has schema id {number}, which the registry does not know")
            try:
                value = schemaless_reader(stream, writers[number], reader)
            except IndexError as error:
                if stream.tell() == len(data):
                    raise EOFError from error  # in the middle of a number
                raise
            if stream.tell() != len(data):
                raise BadValue("has more bytes than its schema says")
            return value

        return read


def schema_id(frame: bytes) -> int:
    """Of the first five bytes. Raises BadValue."""
    if len(frame) < 5 or frame[0]:
        raise BadValue("does not begin with Confluent's frame (a zero byte and a schema id)")
    return int(_FRAME.unpack(frame)[1])
