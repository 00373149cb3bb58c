"""Schemas in files: read, compiled, and checked by `check-config` and before Spark starts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from kzconsumer.installation import pip_install
from kzconsumer_spark.columns.avro_and_protobuf import AvroSchema, ProtobufDecoder, Unsupported
from kzconsumer_spark.columns.ddl_types import require_types
from kzconsumer_spark.worker_protocol.column_options import FILE, Columns, FieldOptions

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
