"""`config import` knows every key that the original's own classes read, from the jars of its releases."""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.jars import kafka_version, resolve_jars
from kzconsumer_tools.original_config import KEYS
from tests.support.servers import Servers

CLASSES = (
    "kafka/consumer/ConsumerConfig",
    "kafka/utils/ZKConfig",
    "kafka/metrics/KafkaMetricsConfig",
    "kafka/metrics/KafkaCSVMetricsReporter",
)
NEWER = {"fetch.max.bytes"}
ELSEWHERE = {"serializer.encoding"}  # read by kafka.serializer.StringDecoder, if the application uses it
_KEY = re.compile(r"[a-z]+(\.[a-z]+)+")


@pytest.mark.parametrize("version", ["0.8.2.2", "0.10.2.2", "1.1.1"])
def test_the_keys_are_those_of_the_classes(servers: Servers, version: str) -> None:
    folder = Path(resolve_jars(kafka_version(version).jars))
    (jar,) = [path for path in folder.iterdir() if "kafka_2" in path.name]
    with zipfile.ZipFile(jar) as classes:
        files = [name for name in classes.namelist() if name.startswith(CLASSES) and name.endswith(".class")]
        found = {text for name in files for text in _strings(classes.read(name)) if _KEY.fullmatch(text)}
    assert found == KEYS.keys() - ELSEWHERE - (NEWER if version == "0.8.2.2" else set())


def _strings(data: bytes) -> Iterator[str]:
    """The texts of a class file's constant pool (JVM specification, 4.4)."""
    (count,) = struct.unpack_from(">H", data, 8)
    at, index = 10, 1
    while index < count:
        tag = data[at]
        if tag == 1:
            (length,) = struct.unpack_from(">H", data, at + 1)
            yield data[at + 3 : at + 3 + length].decode("utf-8", "replace")
            at += 3 + length
        else:
            at += {5: 9, 6: 9, 7: 3, 8: 3, 15: 4, 16: 3, 19: 3, 20: 3}.get(tag, 5)
        index += 2 if tag in (5, 6) else 1
