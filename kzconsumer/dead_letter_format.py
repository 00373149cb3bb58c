"""A rejected record with all that is known of it, as a Kafka record and as a line of JSON.

In Kafka the record keeps key, value and headers; behind those come the headers of Spring's
`DeadLetterPublishingRecoverer` (spring-kafka 2.7 and later), the only common convention with names for group and time.
"""

from __future__ import annotations

import struct

import msgspec

from kzconsumer.offsets.progress import Message
from kzconsumer.records.forms import content

# As Java prints org.apache.kafka.common.record.TimestampType.
_TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}
_NO_TIMESTAMP = -1
# Headers count for the size that a broker accepts.
_LONGEST_REASON = 4096

_encoder = msgspec.json.Encoder()


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that `group` has rejected."""

    message: Message
    error_class: str
    reason: str
    group: str

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Those of the record, then those about the rejection; numbers are big-endian, texts UTF-8.

        A NUL in a name is U+FFFD: librdkafka would cut the name off there, without an error.
        """
        message = self.message
        timestamp = _NO_TIMESTAMP if message.timestamp is None else message.timestamp
        return [
            *((name.replace("\0", "\ufffd"), value) for name, value in message.headers),
            ("kafka_dlt-original-topic", message.topic.encode()),
            ("kafka_dlt-original-partition", struct.pack(">i", message.partition)),
            ("kafka_dlt-original-offset", struct.pack(">q", message.offset)),
            ("kafka_dlt-original-timestamp", struct.pack(">q", timestamp)),
            ("kafka_dlt-original-timestamp-type", _timestamp_type(message).encode()),
            ("kafka_dlt-original-consumer-group", self.group.encode()),
            ("kafka_dlt-exception-fqcn", self.error_class.encode()),
            ("kafka_dlt-exception-message", self.reason[:_LONGEST_REASON].encode(errors="replace")),
        ]

    def line(self, rejected_at: int) -> bytes:
        """One JSON object and a line end; `rejected_at` is ms since 1970, as the record's own `timestamp`."""
        message = self.message
        fields = {
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "timestamp": message.timestamp,
            "timestamp_type": _timestamp_type(message),
            "key": content(message.key),
            "value": content(message.value),
            "headers": [(name, content(value)) for name, value in message.headers],
            "group": self.group,
            "error_class": self.error_class,
            "reason": self.reason.encode(errors="replace").decode(),
            "rejected_at": rejected_at,
        }
        return _encoder.encode(fields) + b"\n"


def _timestamp_type(message: Message) -> str:
    return _TIMESTAMP_TYPES.get(message.timestamp_type, "NoTimestampType")
