"""Schemas that the settings name: by `file:`, read and checked before Spark starts, or in a Confluent schema registry.

`check-config` finds the same faults of files as the worker.
"""

from __future__ import annotations

import importlib.util
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from kzconsumer.installation import pip_install
from kzconsumer_spark.columns.avro_and_protobuf import AvroSchema, ProtobufDecoder, Unsupported
from kzconsumer_spark.worker_protocol.column_options import FILE, Columns, FieldOptions, RegistryOptions

_NEEDS = {
    "avro": ("fastavro", "avro"),
    "confluent-avro": ("fastavro", "avro"),
    "protobuf": ("google.protobuf", "protobuf"),
}


def check_files(columns: Columns) -> None:
    """Raises ValueError, a line that begins with the key, if a file cannot be read or a package is missing."""
    for name, options in columns.fields.items():
        try:
            _check(options)
            if options.needs_registry:
                _require("urllib3", "avro", "a schema registry")
        except OSError as error:
            raise ValueError(f"{name}.schema: {error.filename}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"{name}.schema: {error}") from error


def _check(options: FieldOptions) -> None:
    if options.format in _NEEDS:
        what = f'format "{options.format}"'
        _require(*_NEEDS[options.format], what)
        if tuple(map(int, metadata.version("pyspark").split(".")[:2])) < (4, 1):
            raise Unsupported(f"{what} needs Spark 4.1 or later; {metadata.version('pyspark')} is installed")
    if options.format == "json":
        require_types(ddl(options))
    if options.schema is None or not options.schema.startswith(FILE):
        return
    if options.format == "protobuf":
        protobuf_decoder(options)
    elif options.format != "json":
        avro_schema(options)


def ddl(options: FieldOptions) -> str:
    """Spark DDL, from the file if one is named. Raises OSError."""
    assert options.schema is not None
    return _path(options.schema).read_text() if options.schema.startswith(FILE) else options.schema


def avro_schema(options: FieldOptions) -> AvroSchema:
    """Read an .avsc file. Raises OSError, Unsupported."""
    assert options.schema is not None
    try:
        return AvroSchema(json.loads(_path(options.schema).read_text()))
    except json.JSONDecodeError as error:
        raise Unsupported(f"{options.schema} is not JSON: {error}") from error


def protobuf_decoder(options: FieldOptions) -> ProtobufDecoder:
    """Read a .proto file, which is compiled, or a descriptor set. Raises OSError, Unsupported."""
    assert options.schema is not None
    assert options.message is not None
    path = _path(options.schema)
    files = _compiled(path) if path.suffix == ".proto" else path.read_bytes()
    return ProtobufDecoder(files, options.message)


def _compiled(path: Path) -> bytes:
    if importlib.util.find_spec("grpc_tools") is None:
        raise Unsupported(
            f"{path.name} has to be compiled: pip install grpcio-tools, or give the file that"
            " protoc --include_imports --descriptor_set_out=FILE makes"
        )
    path.stat()
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{path.parent}", "--include_imports"]
    command += ["--descriptor_set_out=/dev/stdout", str(path)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        said = (line for line in done.stderr.decode(errors="replace").splitlines() if path.name in line)
        raise Unsupported(f"{path.name} cannot be compiled: {next(said, 'protoc failed')}")
    return done.stdout


def _path(schema: str) -> Path:
    return Path(schema.removeprefix(FILE))


def _require(module: str, extra: str, what: str) -> None:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the parent package is missing
        found = None
    if found is None:
        raise Unsupported(f"{what} needs more packages: {pip_install(extra, 'kzconsumer-spark')}")


# A registry is asked over HTTP, once for each schema, by the worker's driver process only.

_RETRIES = 3
_BACKOFF = 0.2
_TRY_AGAIN = (408, 429, 500, 502, 503, 504)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class RegistryError(Exception):
    """The registry did not answer with a usable schema; one line with its address."""


class NotRegistered(RegistryError):
    """The registry does not have the schema."""


class Registry:
    """A client of one registry. Schemas by id are cached, since they never change."""

    def __init__(self, options: RegistryOptions) -> None:
        """Raises RegistryError when a file that the options name cannot be read."""
        import urllib3  # from an extra: only needed with a registry

        self._url = options.url.rstrip("/")
        headers = {"Accept": _ACCEPT}
        try:
            if options.password_file is not None:
                password = Path(options.password_file).read_text().rstrip("\n")
                headers |= urllib3.make_headers(basic_auth=f"{options.user}:{password}")
            context = ssl.create_default_context(cafile=options.ca_file) if options.url.startswith("https") else None
        except OSError as error:
            raise RegistryError(f"schema registry {self._url}: {error}") from error
        retries = urllib3.Retry(
            total=_RETRIES, backoff_factor=_BACKOFF, status_forcelist=_TRY_AGAIN, raise_on_status=False, redirect=3
        )
        self._pool = urllib3.PoolManager(
            headers=headers, timeout=options.timeout, retries=retries, ssl_context=context, maxsize=1
        )
        self._by_id: dict[int, AvroSchema] = {}

    def by_id(self, number: int) -> AvroSchema:
        """Raises NotRegistered for an id that the registry does not know, RegistryError."""
        if number not in self._by_id:
            self._by_id[number] = self._schema(f"/schemas/ids/{number}", f"schema id {number}")
        return self._by_id[number]

    def latest(self, subject: str) -> AvroSchema:
        """The newest version of a subject. Raises NotRegistered, RegistryError."""
        return self._schema(f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject}")

    def _schema(self, path: str, what: str) -> AvroSchema:
        answer = self._get(path, what)
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise RegistryError(f"schema registry {self._url}: {what} is {answer['schemaType']}, not Avro")
        referred: dict[str, Any] = {}
        self._refer(answer, referred)
        try:
            return AvroSchema(json.loads(answer["schema"]), tuple(referred.values()))
        except (Unsupported, ValueError, KeyError) as error:
            raise RegistryError(f"schema registry {self._url}: {what}: {error}") from error

    def _refer(self, answer: dict[str, Any], found: dict[str, Any]) -> None:
        """Collect the referenced schemas, each after those it refers to itself."""
        for reference in answer.get("references") or ():
            subject, version = reference["subject"], reference["version"]
            if reference["name"] not in found:
                path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
                other = self._get(path, f"subject {subject} version {version}")
                self._refer(other, found)
                found[reference["name"]] = json.loads(other["schema"])

    def _get(self, path: str, what: str) -> dict[str, Any]:
        from urllib3.exceptions import HTTPError

        try:
            response = self._pool.request("GET", self._url + path)
        except HTTPError as error:
            cause = getattr(error, "reason", None) or error
            reason = " ".join(str(cause).split()).rpartition(">: ")[2]
            raise RegistryError(
                f"schema registry {self._url}: {what}: no answer in {_RETRIES + 1} attempts: {reason}"
            ) from error
        if response.status == 404:
            raise NotRegistered(f"schema registry {self._url}: {what} is not registered")
        if response.status != 200:
            raise RegistryError(f"schema registry {self._url}: {what}: HTTP status {response.status}")
        try:
            return dict(json.loads(response.data))
        except (ValueError, TypeError) as error:
            raise RegistryError(f"schema registry {self._url}: {what}: the answer is not JSON") from error


# Reads a schema in Spark's DDL without Spark, so that columns that JSON is not read as are found before one starts.
#
# What is not understood here is left to Spark's own parser, in the worker.


_TOKEN: Final = re.compile(
    r"""(?P<space>(?:\s|--[^\n]*(?:\n|$)|/\*(?:[^*]|\*(?!/))*\*/)+)
    | (?P<word>\w+)
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<text>'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
    | (?P<sign>[<>(),:])""",
    re.VERBOSE | re.DOTALL,
)
#: As `json_reading.require_readable` has them, by every name that Spark's parser knows.
READ: Final = frozenset(
    {
        *("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"),
        *("float", "real", "double", "decimal", "dec", "numeric"),
        *("boolean", "string", "binary", "variant"),
        *("date", "timestamp", "timestamp_ltz", "timestamp_ntz"),
    }
)


class _Token(NamedTuple):
    kind: str
    text: str


_END: Final = _Token("end", "")


class _NotUnderstood(Exception):
    pass


def require_types(ddl: str) -> None:
    """Raises Unsupported for a type that JSON is not read as, and for names that differ in case only."""
    try:
        faults = _Columns(ddl).faults()
    except _NotUnderstood:
        return
    if faults:
        raise Unsupported(faults[0])


class _Columns:
    def __init__(self, ddl: str) -> None:
        self._tokens = list(_tokens(ddl))
        self._at = 0
        self._faults: list[str] = []

    def faults(self) -> list[str]:
        self._read_columns("")
        if self._next() is not _END:
            raise _NotUnderstood
        return self._faults

    def _read_columns(self, path: str) -> None:
        spelled: dict[str, str] = {}
        while True:
            name = self._name()
            inside = f"{path}.{name}" if path else name
            if (other := spelled.setdefault(name.lower(), inside)) is not inside:
                self._faults.append(f"columns {other} and {inside} are one to Spark, which ignores case")
            self._has(":")
            self._read_type(inside)
            if self._has("not"):
                self._require("null")
            if self._has("comment") and self._next().kind != "text":
                raise _NotUnderstood
            if not self._has(","):
                return

    def _read_type(self, path: str) -> None:
        kind = self._next()
        match kind.text.lower() if kind.kind == "word" else "":
            case "array":
                self._require("<")
                self._read_type(path)
                self._require(">")
            case "map":
                self._require("<")
                self._read_type(path)
                self._require(",")
                self._read_type(path)
                self._require(">")
            case "struct":
                self._require("<")
                if not self._has(">"):
                    self._read_columns(path)
                    self._require(">")
            case "":
                raise _NotUnderstood
            case "interval":
                words = [kind.text]
                while self._tokens[self._at].kind == "word" and not self._is_at("not", "comment"):
                    words.append(self._next().text)
                self._refuse(path, " ".join(words))
            case name:
                sizes = self._sizes()
                if name == "string" and self._has("collate"):
                    self._name()
                if name not in READ:
                    self._refuse(path, name + sizes)

    def _refuse(self, path: str, kind: str) -> None:
        self._faults.append(f"column {path} is {kind.upper()}, which JSON is not read as; use STRING")

    def _sizes(self) -> str:
        if not self._has("("):
            return ""
        sizes = [self._next().text]
        while self._has(","):
            sizes.append(self._next().text)
        self._require(")")
        return f"({','.join(sizes)})"

    def _name(self) -> str:
        found = self._next()
        if found.kind not in ("word", "quoted"):
            raise _NotUnderstood
        return found.text

    def _next(self) -> _Token:
        found = self._tokens[self._at]
        self._at += found is not _END
        return found

    def _is_at(self, *words: str) -> bool:
        found = self._tokens[self._at]
        return found.kind in ("word", "sign") and found.text.lower() in words

    def _has(self, word: str) -> bool:
        """Go behind it, if it follows."""
        here = self._is_at(word)
        self._at += here
        return here

    def _require(self, word: str) -> None:
        if not self._has(word):
            raise _NotUnderstood


def _tokens(ddl: str) -> Iterator[_Token]:
    at = 0
    while at < len(ddl):
        found = _TOKEN.match(ddl, at)
        if found is None or found.lastgroup is None:
            raise _NotUnderstood
        if found.lastgroup == "quoted":
            yield _Token("quoted", found["quoted"].replace("``", "`"))
        elif found.lastgroup != "space":
            yield _Token(found.lastgroup, found[0])
        at = found.end()
    yield _END
