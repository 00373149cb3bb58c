"""The group's file. The names below are the interface for authors of plugins that have settings of their own."""

from kzconsumer.redaction import redacted, redacted_text
from kzconsumer.settings.quantities import ByteSize, Duration, PositiveDuration, read_byte_size, read_duration, reader
from kzconsumer.settings.secret import read_secret
from kzconsumer.settings.tables import nearest, read_table

__all__ = [
    "ByteSize",
    "Duration",
    "PositiveDuration",
    "nearest",
    "read_byte_size",
    "read_duration",
    "read_secret",
    "read_table",
    "reader",
    "redacted",
    "redacted_text",
]
