"""Options for columns: `[sink.options.value]`, `.key`, `.registry`, and `select`, `where`."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

import msgspec

from kzconsumer.settings.table_reader import PositiveDuration, reader

Format: TypeAlias = Literal["raw", "string", "json", "avro", "confluent-avro", "protobuf"]
Field: TypeAlias = Literal["key", "value"]
FILE = "file:"
REGISTRY = "registry:"


_STORED: Final = {"reject": "fail"}


def split_url(url: str) -> SplitResult | None:
    """None for what is none. The standard library's own words would repeat it, with the password that it may hold."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def read_url(value: object) -> object:
    if isinstance(value, str):
        parts = split_url(value)
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or "@" in value or parts.query:
            raise ValueError("is not the URL of a schema registry, such as http://host:8081")
    return value


class FieldOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`[sink.options.key]` or `.value`: what the bytes are, and what becomes of a record whose bytes are not.

    `schema`: for json Spark DDL, or `file:` with DDL in it; for avro and confluent-avro `file:` (.avsc) or
    `registry:<subject>`, which confluent-avro does not need; for protobuf `file:` (.proto, or a descriptor set) with
    `message`, the full name of the message type.
    """

    format: Format
    schema: str | None = None
    message: str | None = None
    on_error: Literal["reject", "quarantine", "column"] = "reject"

    def __post_init__(self) -> None:
        kind, schema = self.format, self.schema
        if kind in ("raw", "string"):
            if schema is not None:
                raise ValueError(f'schema does not go with format "{kind}"')
        elif not schema:
            if kind != "confluent-avro":
                raise ValueError(f'schema is missing: format "{kind}" needs it')
        elif kind == "json" and schema.startswith(REGISTRY):
            raise ValueError("schema: that of JSON is Spark DDL, or file: with DDL in it")
        elif kind in ("avro", "confluent-avro") and not schema.startswith((FILE, REGISTRY)):
            raise ValueError('schema: that of Avro is "file:name.avsc" or "registry:subject"')
        elif kind == "protobuf" and not schema.startswith(FILE):
            raise ValueError('schema: that of protobuf is "file:name.proto", or "file:" with a descriptor set')
        if (kind == "protobuf") != (self.message is not None):
            raise ValueError("message is the name of a protobuf message type: " + (
                "format \"protobuf\" needs it" if kind == "protobuf" else f'it does not go with format "{kind}"'
            ))  # fmt: skip
        if kind == "raw" and self.on_error != "reject":
            raise ValueError('on_error does not go with format "raw": any bytes are good')

    @property
    def needs_registry(self) -> bool:
        return self.format == "confluent-avro" or (self.schema or "").startswith(REGISTRY)


class RegistryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`[sink.options.registry]`: a Confluent schema registry, or what speaks as one. `ca_file` is for https.

    `password_file` has the password of `user`. `timeout` is for one request; a request is tried four times.
    """

    url: Annotated[str, reader(read_url)]
    user: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    timeout: PositiveDuration = 10.0

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password_file is None):
            raise ValueError("user and password_file go together")


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `quarantine` is the directory for bad records; None when there is nowhere to put them."""

    key: FieldOptions = FieldOptions(format="raw")
    value: FieldOptions = FieldOptions(format="raw")
    registry: RegistryOptions | None = None
    select: str | None = None
    where: str | None = None
    quarantine: str | None = None

    @property
    def fields(self) -> dict[Field, FieldOptions]:
        """Those that are decoded."""
        both: dict[Field, FieldOptions] = {"key": self.key, "value": self.value}
        return {name: options for name, options in both.items() if options.format != "raw"}

    @property
    def shape(self) -> tuple[object, ...]:
        """What decides which rows records become; not by whom a registry is reached, or where bad records lie."""
        # Part of fingerprints, which are in claim records: "reject" was called "fail".
        both = (msgspec.structs.asdict(each) for each in (self.key, self.value))
        fields = ({**each, "on_error": _STORED.get(each["on_error"], each["on_error"])} for each in both)
        return *fields, self.select, self.where

    @property
    def change_nothing(self) -> bool:
        return not self.fields and self.select is None and self.where is None

    def require_whole(self) -> None:
        """Raises ValueError where one option needs another."""
        for name, options in self.fields.items():
            if options.needs_registry and self.registry is None:
                raise ValueError(f"registry is missing: {name} needs it")
            if options.on_error == "quarantine" and self.quarantine is None:
                raise ValueError(
                    f'quarantine is missing, the directory for bad records: {name}.on_error = "quarantine"'
                )
        for key, text in (("select", self.select), ("where", self.where)):
            if text is not None and not text.strip():
                raise ValueError(f"{key} is empty")
