"""A Spark process that shapes one batch as the worker would, prints the result and ends.

Reads a `PreviewRequest` from standard input, writes a `Preview` or a `Failed` to standard output.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kzconsumer.sinks.interface import BadRecord, Preview
from kzconsumer_spark.columns.shaping import BadPosition, Shaping
from kzconsumer_spark.ranges.batch import SCHEMA
from kzconsumer_spark.worker.spark_errors import fault_of_settings, reason_of
from kzconsumer_spark.worker.spark_session import build_session, start_java, take_pipes
from kzconsumer_spark.worker_protocol.messages import Failed, PreviewRequest, encode
from kzconsumer_spark.worker_protocol.spark_settings import location

MOST_BAD = 100
_ORDER = {f"_kz_{name}": name for name in ("topic", "partition", "offset")}


def main() -> None:
    requests, answers = take_pipes()
    request = msgspec.json.decode(requests.read(), type=PreviewRequest)
    Path(request.start.scratch).mkdir()
    try:
        answer = msgspec.json.encode(shape(request))
    except BaseException as error:
        refused = fault_of_settings(error, request.start)
        reason = refused or reason_of(error, request.start)
        answer = encode(Failed(number=None, error=reason, settings=refused is not None))
    answers.write(answer)
    answers.flush()
    os._exit(0)  # the JVM ends with our session


def shape(request: PreviewRequest) -> Preview:
    session = build_session(request.start, start_java(request.start))
    # Nothing is quarantined, so no directory is needed.
    shaping = Shaping(session, msgspec.structs.replace(request.start.columns, quarantine=None), SCHEMA)
    records = session.read.schema(SCHEMA).parquet(*map(location, request.files))
    ordered = records.withColumns({name: F.col(of) for name, of in _ORDER.items()})
    frame, bad = shaping.preview(ordered, MOST_BAD)
    return previewed(frame.orderBy(*_ORDER).drop(*_ORDER), bad)


def previewed(frame: DataFrame, bad: Sequence[BadPosition]) -> Preview:
    """The rows of a frame, in its order, and where the bad records are."""
    return Preview(
        columns=tuple((field.name, field.dataType.simpleString()) for field in frame.schema),
        rows=tuple(tuple(map(shown, row)) for row in frame.collect()),
        bad=tuple(BadRecord(*each) for each in bad),
    )


def shown(value: object) -> object:
    """A cell as a JSON value: bytes as text if they are UTF-8, else as 0x and hexadecimal digits."""
    match value:
        case bytes() | bytearray():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return f"0x{value.hex()}"
        case datetime.date() | datetime.timedelta() | Decimal():
            return str(value)
        case Mapping():
            return {str(key): shown(item) for key, item in value.items()}
        case tuple() if hasattr(value, "asDict"):
            return {name: shown(item) for name, item in value.asDict().items()}
        case list() | tuple():
            return [shown(item) for item in value]
    return value


if __name__ == "__main__":
    main()
