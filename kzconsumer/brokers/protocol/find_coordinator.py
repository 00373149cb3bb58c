"""FindCoordinator: which broker stores a group's offsets. Any broker from 0.8.2 on answers (as ConsumerMetadata there).

The first request in a cluster makes the brokers create the offsets topic; until it exists the error is
COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from kzconsumer.brokers.protocol.primitives import INT8, Reader, reading
from kzconsumer.brokers.protocol.versions import FIND_COORDINATOR, encoding_of
from kzconsumer.errors import ProtocolError
from kzconsumer.model import Broker

_GROUP: Final = 0
"""Type of the key; 1 asks for the coordinator of a transactional id."""


class Coordinator(msgspec.Struct, frozen=True):
    error: int
    broker: Broker
    """Id -1 with an error."""
    message: str | None
    """The broker's text for the error; None, "" or "NONE" without one."""


class FindCoordinatorRequest(msgspec.Struct, frozen=True):
    group: str
    api_key: ClassVar[int] = FIND_COORDINATOR

    def encode(self, version: int) -> bytes:
        encoding = encoding_of(FIND_COORDINATOR, version)
        group = encoding.string(self.group)
        if version == 0:
            return group
        key_type = INT8.pack(_GROUP)
        if version < 4:
            return group + key_type + encoding.tags
        return key_type + encoding.array(1) + group + encoding.tags

    def decode(self, version: int, body: memoryview) -> Coordinator:
        with reading("FindCoordinator", version):
            reader = encoding_of(FIND_COORDINATOR, version).reader(body)
            if version >= 1:
                reader.int32()  # throttle_time_ms
            if version >= 4:
                found = dict(_of_key(reader) for _ in range(reader.count()))
                if self.group not in found:
                    raise ProtocolError(f"no coordinator of group {self.group!r} in it")
                coordinator = found[self.group]
            else:
                error = reader.int16()
                message = reader.nullable_string() if version >= 1 else None
                coordinator = Coordinator(error, _broker(reader), message)
            reader.tags()
            reader.end()
            return coordinator


def _of_key(reader: Reader) -> tuple[str, Coordinator]:
    key = reader.string()
    broker = _broker(reader)
    coordinator = Coordinator(reader.int16(), broker, reader.nullable_string())
    reader.tags()
    return key, coordinator


def _broker(reader: Reader) -> Broker:
    return Broker(reader.int32(), reader.string(), reader.int32())
